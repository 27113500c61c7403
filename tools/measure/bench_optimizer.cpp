#include "measure/bench_optimizer.h"

#include <cctype>
#include <string_view>

#include <terrace/base/error.h>
#include <terrace/optimizer_cpu/optimizer_table.h>

#include "command_line.h"

namespace terrace {
namespace {

constexpr double kMuonMomentum = 0.95;

std::string words(std::string_view between) {
  std::string all;
  for (const OptimizerRow& row : kOptimizers) all.append(all.empty() ? "" : between).append(row.word);
  return all;
}

}  // namespace

void BenchOptimizer::add_to(const FlagGroup& group) {
  group.text("--optimizer", words("|"), name, "What updates them (default adamw)");
  group.number("--momentum", 0, 1, momentum,
               "Of sgd, below 1 (default 0: it keeps no moment), and of muon (default 0.95)");
  group.yes("--nesterov", nesterov, "Of sgd with a momentum, and of muon");
}

OptimizerSettings BenchOptimizer::settings() const {
  std::string lower = name;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const OptimizerRow* const row = optimizer_of_word(lower);
  if (row == nullptr)
    refuse("--optimizer " + name, "there is no such optimizer", "give one of " + words(", "));
  const bool is_muon = row->kind == OptimizerKind::muon;
  if (!row->has_momentum && !is_muon && momentum != 0)
    refuse("--momentum", lower + " has none", "leave it out, or give --optimizer sgd");
  if (momentum >= 1) refuse("--momentum 1", "it is not below 1", "give for example 0.9");
  if (nesterov && !is_muon && momentum == 0)
    refuse("--nesterov", "there is no momentum", "give --optimizer sgd --momentum 0.9");
  OptimizerSettings settings;
  settings.kind = row->kind;
  settings.lr = 1e-4;
  settings.weight_decay = 0.01;
  settings.adamw_mode = row->decays_apart;
  settings.momentum = is_muon && momentum == 0 ? kMuonMomentum : momentum;
  settings.nesterov = nesterov;
  settings.beta2 = row->beta2;
  settings.eps = row->eps;
  return settings;
}

}  // namespace terrace
