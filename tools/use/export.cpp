// `terrace export`: writes the weights of a checkpoint as a Hugging Face folder. It reads the checkpoint's
// files a block at a time, and needs neither the memory of training nor its configuration.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/runtime/checkpoint/checkpoint.h>
#include <terrace/runtime/model/weights/architecture.h>
#include <terrace/runtime/model/weights/export_adapter.h>
#include <terrace/runtime/model/weights/export_weights.h>

#include "command_line.h"
#include "console.h"
#include "flags/model_path.h"

namespace terrace {
namespace {

constexpr const char* kExportExamples =
    "Examples:\n"
    "  terrace export checkpoints/ --out model/\n"
    "  terrace export checkpoints/step-00001000 --out model-fp32/ --dtype fp32 --max-shard-size 2GB \\\n"
    "      --tokenizer Qwen2.5-0.5B/\n";

constexpr uint32_t kBytes = 256;  // the vocabulary of a model of bytes
// Chunks of this many elements make a space that is only a list of places.
constexpr uint64_t kOneChunk = uint64_t{1} << 40;

class Export final : public Subcommand {
 public:
  explicit Export(Command& app) {
    Command command = app.add_subcommand(name_, "Write the weights of a checkpoint as a Hugging Face folder");
    command.add_option("checkpoint", checkpoint_, "A folder of checkpoints, or one of them")
        .required()
        .type_name("CHECKPOINT");
    command.add_option("--out", out_, "The folder to make").required().type_name("DIR");
    command.add_option("--dtype", type_, "bf16, fp16 or fp32 (default: that of the checkpoint's parameters)")
        .type_name("bf16|fp16|fp32");
    command.add_option("--max-shard-size", shard_, "The most bytes of tensors in one file (default 5GB)")
        .type_name("SIZE");
    command.add_option("--tokenizer", tokenizer_, "Copy the tokenizer's files of this model folder")
        .type_name("DIR");
    command.add_flag(
        "--adapter", adapter_,
        "Only the low-rank adapters, as PEFT has them; without it they are merged into the weights");
    command.add_option("--base", base_, "With --adapter: from where PEFT loads the model itself")
        .type_name("NAME|DIR");
    command.add_flag("--force", force_, "Replace an earlier export");
    command.add_flag("--json", json_, "Print the result as JSON");
    command.footer(kExportExamples);
  }

  const std::string& name() const override { return name_; }
  int run() override;

 private:
  ExportOptions options(const CheckpointInfo& info) const;

  const std::string name_ = "export";
  std::string checkpoint_, out_, type_, shard_ = "5GB", tokenizer_, base_;
  bool adapter_ = false;
  bool force_ = false;
  bool json_ = false;
  Console console_;
};

ExportOptions Export::options(const CheckpointInfo& info) const {
  ExportOptions options;
  options.type = info.type;
  bool is_type = type_.empty();
  for (const DataType candidate : {DataType::fp32, DataType::bf16, DataType::fp16}) {
    if (type_ != name_of(candidate)) continue;
    options.type = candidate;
    is_type = true;
  }
  if (!is_type) {
    throw Error(ErrorKind::config, {"cannot use", fmt::format("--dtype {}", type_),
                                    "it is not bf16, fp16 or fp32", "give one of these"});
  }
  options.max_shard_bytes = parse_bytes(shard_, "--max-shard-size");
  if (options.max_shard_bytes == 0)
    throw Error(ErrorKind::config, {"cannot use", "--max-shard-size", "it is 0", "give a size such as 5GB"});
  options.replace = force_;
  if (!tokenizer_.empty()) options.source = tokenizer_path(tokenizer_);
  return options;
}

int Export::run() {
  require_exists("the checkpoint", checkpoint_);
  const CheckpointInfo info = read_checkpoint_info(checkpoint_);
  if (info.architecture.empty()) {
    throw Error(ErrorKind::config,
                {"cannot export the checkpoint", checkpoint_, "it does not say what model it is of",
                 "resume it with `terrace train --resume` and --save: the checkpoint saved then does"});
  }
  const std::unique_ptr<Model> model = make_model_of(info.architecture, info.type, checkpoint_);
  const ExportOptions chosen = options(info);
  const FlatSpace space(model->tensors(), kOneChunk);
  const auto source = [&](FunctionRef<bool(TensorId)> wanted, ValueSink sink) {
    read_checkpoint_values(checkpoint_, space, wanted, sink);
  };
  const ExportReport report = adapter_ ? export_model_adapter(out_, *model, base_, chosen, source, console_)
                                       : export_model(out_, *model, chosen, source, console_);
  const std::string folder = report.folder.string();
  const std::string text =
      json_ ? json_object({{"folder", folder},
                           {"step", info.step},
                           {"dtype", name_of(chosen.type)},
                           {"weights", report.weight_count},
                           {"files", report.file_count},
                           {"bytes", report.bytes}}) +
                  "\n"
            : fmt::format("{} weights of step {} as {} in {} ({})\n", report.weight_count, info.step,
                          name_of(chosen.type), folder, format_bytes(report.bytes));
  const bool is_said = !json_ && console_.is_terminal() && isatty(STDOUT_FILENO) == 1;  // the log has said it
  if (!is_said) print_result(text);
  const bool has_words = model->config().vocabulary > kBytes;
  if (tokenizer_.empty() && !adapter_ && has_words)
    console_.warning(
        "no tokenizer was written beside the weights: --tokenizer FOLDER copies that of the model");
  return kDone;
}

}  // namespace

std::unique_ptr<Subcommand> add_export(Command& app) {
  return std::make_unique<Export>(app);
}

}  // namespace terrace
