#include "server/core/state/counting.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/text.h"
#include "placement/ids.h"
#include "proto/wire/report_counts.h"
#include "server/core/state/sentences.h"

namespace eplb::core {
namespace {

constexpr size_t kLayersNamed = 8;

// The silence of one rank, by layer.
class Reporter {
 public:
  Reporter(const Run& run, int32_t rank)
      : since_(run.ranks[rank].silent_since),
        through_(run.ranks[rank].reported_step),
        enough_(int64_t{kSilentIntervals} * run.ranks[rank].report_steps) {}

  bool IsSilent(int32_t layer) const {
    const int64_t since = since_.empty() ? kCounts : SilentSince(layer);
    return since != kCounts && through_ - since + 1 >= enough_;
  }
  // REQUIRES: IsSilent(layer).
  int64_t SilentSince(int32_t layer) const { return since_[static_cast<size_t>(layer)]; }

 private:
  const std::vector<int64_t>& since_;
  int64_t through_;
  int64_t enough_;
};

// Ranks whose newest report reaches the newest complete window.
std::vector<int32_t> CurrentReporters(const Job& job) {
  const Run& run = *job.current;
  std::vector<int32_t> reporters;
  for (int32_t rank = 0; rank < run.world_size(); rank += run.ranks_per_reporter()) {
    if (run.ranks[rank].reported_step >= job.windows.newest.last_step) reporters.push_back(rank);
  }
  return reporters;
}

// True for the layers of which a reporter of the stage has tokens: [stages][layers].
using CountedLayers = std::vector<std::vector<bool>>;

// A rank that reports for all has the layers of every stage, and is in the first one.
std::vector<bool>& OfStage(const Run& run, int32_t rank, CountedLayers& counted) {
  const bool for_all = run.reduce == wire::Reduce::kRoot;
  return counted[for_all ? 0 : static_cast<size_t>(run.grid.PipelineStageOf(RankId{rank}))];
}

CountedLayers CountedByStage(const Run& run, const std::vector<int32_t>& reporters) {
  const auto num_layers = static_cast<size_t>(run.shape.num_layers);
  CountedLayers counted(static_cast<size_t>(run.grid.pipeline_parallel_size()),
                        std::vector<bool>(num_layers, false));
  for (const int32_t rank : reporters) {
    const Reporter reporter(run, rank);
    std::vector<bool>& of_stage = OfStage(run, rank, counted);
    for (int32_t layer = 0; layer < run.shape.num_layers; ++layer) {
      if (!reporter.IsSilent(layer)) of_stage[static_cast<size_t>(layer)] = true;
    }
  }
  return counted;
}

// "no rank has counted a token of layers 1..3 since step 50"; empty: each layer has tokens.
std::string SilentLayersText(const Run& run, const std::vector<int32_t>& reporters,
                             const CountedLayers& counted) {
  std::vector<int32_t> silent;
  int64_t since = 0;
  for (int32_t layer = 0; layer < run.shape.num_layers; ++layer) {
    const auto counts = [layer](const auto& stage) { return stage[static_cast<size_t>(layer)]; };
    if (std::ranges::any_of(counted, counts)) continue;
    silent.push_back(layer);
    for (const int32_t rank : reporters) {
      since = std::max(since, Reporter(run, rank).SilentSince(layer));
    }
  }
  if (silent.empty()) return "";
  const bool all = std::ssize(silent) == run.shape.num_layers;
  return absl::StrCat("no rank has counted a token",
                      all ? "" : absl::StrCat(" of ", ListLayers(silent, kLayersNamed)),
                      " since step ", since);
}

// "rank 3 has counted no token since step 50, other ranks have", and likewise for ranks without
// tokens of some layers; empty: every reporter counts what others of its stage count.
std::string SilentRanksText(const Run& run, const std::vector<int32_t>& reporters,
                            CountedLayers& counted) {
  struct Silent {
    std::vector<int32_t> ranks;
    int64_t since = 0;
  };
  Silent whole;
  Silent partial;
  std::vector<int32_t> layers;  // layers of the only rank in `partial`
  for (const int32_t rank : reporters) {
    const Reporter reporter(run, rank);
    const std::vector<bool>& of_stage = OfStage(run, rank, counted);
    std::vector<int32_t> missing;
    int64_t since = 0;
    for (int32_t layer = 0; layer < run.shape.num_layers; ++layer) {
      if (!of_stage[static_cast<size_t>(layer)] || !reporter.IsSilent(layer)) continue;
      missing.push_back(layer);
      since = std::max(since, reporter.SilentSince(layer));
    }
    if (missing.empty()) continue;
    const bool all = std::ssize(missing) == std::ranges::count(of_stage, true);
    Silent& silent = all ? whole : partial;
    silent.ranks.push_back(rank);
    silent.since = std::max(silent.since, since);
    if (!all) layers = std::move(missing);
  }
  std::vector<std::string> texts;
  const auto add = [&texts](const Silent& silent, const std::string& what) {
    if (silent.ranks.empty()) return;
    texts.push_back(absl::StrCat(RankList(silent.ranks),
                                 silent.ranks.size() == 1 ? " has" : " have", " counted no token",
                                 what, " since step ", silent.since, ", other ranks have"));
  };
  add(whole, "");
  add(partial, partial.ranks.size() == 1 ? absl::StrCat(" of ", ListLayers(layers, kLayersNamed))
                                         : " of some layers");
  return absl::StrJoin(texts, "; ");
}

}  // namespace

void NoteCounts(const wire::LoadReport& report, Rank& rank) {
  rank.report_steps = static_cast<int32_t>(
      std::min<int64_t>(report.last_step - report.first_step + 1, kMaxReportEvery));
  const int32_t num_layers = wire::NumLayers(report);
  bool all_count = true;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    const bool counts = wire::HasTokens(report, layer);
    all_count = all_count && counts;
    if (rank.silent_since.empty()) {
      if (counts) continue;
      rank.silent_since.assign(static_cast<size_t>(num_layers), kCounts);
    }
    int64_t& since = rank.silent_since[static_cast<size_t>(layer)];
    if (counts) {
      since = kCounts;
    } else if (since == kCounts) {
      since = report.first_step;
    }
  }
  if (all_count) rank.silent_since = {};
}

std::string NotCountingReason(const Job& job) {
  const Run& run = *job.current;
  const std::vector<int32_t> reporters = CurrentReporters(job);
  const auto counts_all = [&run](int32_t rank) { return run.ranks[rank].silent_since.empty(); };
  if (std::ranges::all_of(reporters, counts_all)) return "";
  CountedLayers counted = CountedByStage(run, reporters);
  std::vector<std::string> texts = {SilentLayersText(run, reporters, counted),
                                    SilentRanksText(run, reporters, counted)};
  std::erase(texts, "");
  if (texts.empty()) return "";
  return absl::StrCat(
      absl::StrJoin(texts, "; "),
      "; look for forwards without gradients, or a missing call of record (docs/symptoms.md)");
}

}  // namespace eplb::core
