#include "client/cli/replay_page.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "client/cli/text.h"
#include "placement/backtest/candidate.h"
#include "placement/decision/rebalance.h"
#include "placement/evaluate.h"
#include "proto/wire/messages.h"

#include "eplb/v1/query.pb.h"

namespace eplb::cli {
namespace {

// The last part of a path, of a directory too.
std::string NameOfFile(const std::string& path) {
  const std::filesystem::path whole(path);
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

}  // namespace

ReplayPage::ReplayPage(const ReplayTrace& trace, const Topology& topology,
                       const ReplayOptions& replay, ReplayPageOptions options)
    : trace_(trace),
      replay_(replay),
      options_(std::move(options)),
      unmoved_(Placement::Static(topology)),
      documents_("trace", NameOfFile(options_.trace), topology, std::ssize(trace.windows)),
      newest_(unmoved_) {
  documents_.LeaveOut("ranks");
}

absl::Status ReplayPage::Ran(int64_t window, const ReplayRow& row, const Placement& placement) {
  if (row.rule) EPLB_RETURN_IF_ERROR(AddPlan(window, row, placement));
  if (documents_.KeepsWindow(window)) EPLB_RETURN_IF_ERROR(AddWindow(window, row, placement));
  peaks_without_eplb_ += row.peak_load_without_eplb;
  peaks_ += row.peak_load;
  newest_ = placement;
  return absl::OkStatus();
}

absl::Status ReplayPage::AddWindow(int64_t t, const ReplayRow& row, const Placement& placement) {
  const Load& load = trace_.windows[static_cast<size_t>(t)];
  const StepRange& steps = trace_.steps[static_cast<size_t>(t)];
  EPLB_ASSIGN_OR_RETURN(const Evaluation equal, Evaluate(load, placement));
  const PageWindow window{.window = t,
                          .first_step = steps.first,
                          .last_step = steps.last,
                          .versions = {version_},
                          .step_seconds = {},
                          .tokens = load.counts().sum(),
                          .split = replay_.split,
                          .balancedness = row.balancedness,
                          .balancedness_equal = equal.mean_balancedness,
                          .balancedness_static = row.balancedness_static,
                          .balancedness_without_eplb = row.balancedness_without_eplb};
  const bool keeps = documents_.KeepsLoads(t);
  documents_.AddWindow(window, keeps);
  if (!keeps) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const Evaluation still, Evaluate(load, unmoved_));
  documents_.AddLoads(window, {load, equal.gpu_loads, still.gpu_loads});
  documents_.AddPlacement(version_, placement);
  return absl::OkStatus();
}

absl::Status ReplayPage::AddPlan(int64_t t, const ReplayRow& row, const Placement& placement) {
  const StepRange& steps = trace_.steps[static_cast<size_t>(t)];
  PageJson plan = UnknownJson(v1::Plan());
  plan["plan"] = t;
  plan["policy"] = options_.policy.name;
  plan["result"] = row.rebalanced ? "rebalanced" : "kept";
  plan["decided_by"] = NameOf(*row.rule);
  plan["reason"] = row.reason;
  plan["split"] = wire::SplitName(replay_.split);
  plan["base_version"] = version_;
  if (!options_.policy.chooses) {
    const int64_t oldest = std::max<int64_t>(t - replay_.history, 0);
    plan["decided_first_step"] = trace_.steps[static_cast<size_t>(oldest)].first;
    plan["decided_last_step"] = trace_.steps[static_cast<size_t>(t - 1)].last;
  }
  if (row.prediction) {
    plan["balancedness_predicted"] = row.prediction->balancedness;
    plan["prediction_error"] = JsonOrNull(row.prediction->error);
    plan["prediction_evidence"] = row.prediction->evidence;
  }
  plan["num_chunks"] = row.rebalanced ? 1 : 0;
  plan["chunks_committed"] = row.rebalanced ? 1 : 0;
  last_reason_ = row.reason;
  if (row.rebalanced) {
    ++version_;
    plan["first_version"] = version_;
    plan["last_version"] = version_;
    plan["switched_step"] = trace_.steps[static_cast<size_t>(t - 1)].last;
    plan["balancedness_seen"] = JsonOrNull(row.balancedness);
    if (row.balancedness) {
      plan["seen_first_step"] = steps.first;
      plan["seen_last_step"] = steps.last;
    }
    if (replay_.costs.priced()) {
      plan["received_bytes"] = row.bytes;
      plan["migration_seconds"] = row.migration_seconds;
    }
    EPLB_RETURN_IF_ERROR(documents_.AddTraffic(plan, newest_, placement));
  }
  documents_.AddPlan(std::move(plan));
  return absl::OkStatus();
}

void ReplayPage::SetJob(const ReplayResult& result) {
  const ReplaySummary& summary = result.summary;
  PageJson& job = documents_.status();
  job["state"] = "REPLAYED";
  job["end_reason"] = absl::StrFormat(
      "Replayed, nothing ran: policy %s decided on %s. Balancedness is %s, without EPLB %s "
      "(computed, mean of the windows with tokens).",
      options_.policy.name, Counted(std::ssize(trace_.windows), "window"),
      FigureText(summary.balancedness_mean, 3),
      FigureText(summary.balancedness_without_eplb_mean, 3));
  job["step"] = trace_.steps.back().last;
  job["version"] = version_;
  job["digest"] = DigestOf(newest_).Hex();
  job["balancedness"] = JsonOrNull(summary.balancedness_mean);
  job["balancedness_static"] = JsonOrNull(summary.balancedness_static_mean);
  job["balancedness_without_eplb"] = JsonOrNull(summary.balancedness_without_eplb_mean);
  job["measured_first_step"] = trace_.steps.front().first;
  job["measured_last_step"] = trace_.steps.back().last;
  job["split"] = wire::SplitName(replay_.split);
  job["measured_split"] = wire::SplitName(replay_.split);
  job["last_reason"] = last_reason_;
  job["policy"] = {{"name", options_.policy.name}, {"mode", ""}};
  if (peaks_without_eplb_ > 0) job["peak_fall"] = 1 - peaks_ / peaks_without_eplb_;
  const bool has_tokens = summary.balancedness_mean.has_value();
  if (replay_.costs.token_seconds > 0 && has_tokens) job["saved_seconds"] = summary.seconds_saved;
  if (replay_.costs.priced()) job["spent_seconds"] = summary.seconds_spent;
  for (const CandidateScore& one : result.candidates) {
    job["candidates"].push_back(
        {{"name", NameOf(one.candidate)},
         {"in_use", nullptr},
         {"windows", one.windows},
         {"balancedness", JsonOrNull(one.balancedness)},
         {"net_seconds", replay_.costs.token_seconds > 0 ? PageJson(one.total()) : PageJson()},
         {"realized", JsonOrNull(one.realized)}});
  }
}

PageJson ReplayPage::Finish(const ReplayResult& result) {
  SetJob(result);
  return documents_.Finish(absl::StrCat("by eplbctl ", EPLB_VERSION, " from ", options_.trace));
}

}  // namespace eplb::cli
