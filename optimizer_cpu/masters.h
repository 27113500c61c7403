// Master weights in their forms (MasterForm): the fp32 value in the record, the bf16 parameter and an int16
// remainder below it, or the fp32 parameter itself. They are free functions over elements and over whole
// tiles, without threads or allocation, and give the same bits on every instruction set.
//
//   split:  parameter = to_bf16(master), remainder = low half of bits(master), 0 when master is NaN
//   join:   bits(master) = (bits(parameter) << 16) + remainder
//
// join(split(x)) is x for every fp32 that is no NaN, infinities, denormals and both zeros included, because
// to_bf16() rounds ties away from zero; a NaN comes back as to_bf16() has it: quiet, with its sign and upper
// payload. Parameters that are the masters are copied as they are.
#pragma once

#include <cstddef>
#include <cstdint>

#include <terrace/base/data_type.h>
#include <terrace/base/record_layout.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

// The arrays may have any alignment. A written array overlaps nothing else. `kept` is the part of the masters
// that the record keeps: remainders, or nothing. `form` is not whole.
void split_masters(InstructionSet set, MasterForm form, const std::byte* masters, std::byte* parameters,
                   std::byte* kept, size_t count);
void join_masters(InstructionSet set, MasterForm form, const std::byte* parameters, const std::byte* kept,
                  std::byte* masters, size_t count);

// These convert whole tiles between a layout and its canonical form, which is another. Both records start at
// a tile and overlap nothing else; `parameters` are those of the same tiles, of master_parameter_type(), and
// are not looked at where masters are whole.
//
// Makes the record, and the parameters that are a part of its masters, from a canonical record.
void split_tiles(InstructionSet set, const RecordLayout& layout, const std::byte* canonical_record,
                 std::byte* record, std::byte* parameters, size_t tile_count);
// Makes the canonical record from a record and its parameters.
void join_tiles(InstructionSet set, const RecordLayout& layout, const std::byte* record,
                const std::byte* parameters, std::byte* canonical_record, size_t tile_count);

}  // namespace terrace
