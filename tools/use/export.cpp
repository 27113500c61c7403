// `terrace export`: writes the weights of a checkpoint as a Hugging Face folder. It reads the checkpoint's
// files a block at a time, and needs neither the memory of training nor its configuration.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/reference/model/weights/architecture.h>
#include <terrace/reference/model/weights/export_adapter.h>
#include <terrace/reference/model/weights/export_weights.h>
#include <terrace/runtime/checkpoint/checkpoint.h>

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
  explicit Export(Command& app)
      : Subcommand(app, "export", "Write the weights of a checkpoint as a Hugging Face folder") {
    const FlagGroup group(command_);
    group.text("checkpoint", "CHECKPOINT", checkpoint_, "A folder of checkpoints, or one of them").required();
    group.text("--out", "DIR", out_, "The folder to make").required();
    group.text("--dtype", "bf16|fp16|fp32", type_,
               "bf16, fp16 or fp32 (default: that of the checkpoint's parameters)");
    group.text("--max-shard-size", "SIZE", shard_, "The most bytes of tensors in one file (default 5GB)");
    group.text("--tokenizer", "DIR", tokenizer_, "Copy the tokenizer's files of this model folder");
    group.yes("--adapter", adapter_,
              "Only the low-rank adapters, as PEFT has them; without it they are merged into the weights");
    group.text("--base", "NAME|DIR", base_, "With --adapter: from where PEFT loads the model itself");
    group.yes("--force", force_, "Replace an earlier export");
    group.yes("--json", json_, "Print the result as JSON");
    command_.footer(kExportExamples);
  }

  int run() override;

 private:
  ExportOptions options(const CheckpointInfo& info) const;

  std::string checkpoint_, out_, type_, shard_ = "5GB", tokenizer_, base_;
  bool adapter_ = false;
  bool force_ = false;
  bool json_ = false;
  Console console_;
};

ExportOptions Export::options(const CheckpointInfo& info) const {
  ExportOptions options;
  options.type = type_.empty() ? info.type : type_of_flag("--dtype", type_);
  options.max_shard_bytes = parse_bytes(shard_, "--max-shard-size");
  if (options.max_shard_bytes == 0) refuse("--max-shard-size", "it is 0", "give a size such as 5GB");
  options.replace = force_;
  if (!tokenizer_.empty()) options.source = tokenizer_path(tokenizer_);
  return options;
}

int Export::run() {
  require_exists("the checkpoint", checkpoint_);
  const CheckpointInfo info = read_checkpoint_info(checkpoint_);
  const std::unique_ptr<Model> model = make_model_of(info.architecture, info.type, checkpoint_);
  const ExportOptions chosen = options(info);
  const FlatSpace space(model->tensors(), kOneChunk);
  const auto source = [&](FunctionRef<bool(TensorId)> wanted, ValueSink sink) {
    read_checkpoint_values(checkpoint_, space, wanted, sink);
  };
  const ExportReport report = adapter_
                                  ? export_model_adapter(out_, *model, base_, chosen, source, console_)
                                  : export_model(out_, *model, space.tensors(), chosen, source, console_);
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
