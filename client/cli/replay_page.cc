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

absl::Status ReplayPage::Ran(int64_t window, const ReplayRow& row, const Switching& placement) {
  if (row.rule) EPLB_RETURN_IF_ERROR(AddPlan(window, row, placement.target()));
  newest_ = placement.target();
  NoteSettled(window, row);
  if (documents_.KeepsWindow(window)) {
    EPLB_RETURN_IF_ERROR(AddWindow(window, row, placement.running()));
  }
  peaks_without_eplb_ += row.peak_load_without_eplb;
  peaks_ += row.peak_load;
  return absl::OkStatus();
}

// The first window that ran under the newest version alone shows what its plan reached.
void ReplayPage::NoteSettled(int64_t t, const ReplayRow& row) {
  const StepRange& steps = trace_.steps[static_cast<size_t>(t)];
  if (steps.first < settles_at_) return;
  settled_ = version_;
  if (!unseen_ || !row.balancedness) return;
  PageJson& plan = documents_.plan(*unseen_);
  plan["balancedness_seen"] = *row.balancedness;
  plan["seen_first_step"] = steps.first;
  plan["seen_last_step"] = steps.last;
  unseen_.reset();
}

absl::Status ReplayPage::AddWindow(int64_t t, const ReplayRow& row, const Placement& placement) {
  const Load& load = trace_.windows[static_cast<size_t>(t)];
  const StepRange& steps = trace_.steps[static_cast<size_t>(t)];
  EPLB_ASSIGN_OR_RETURN(const Evaluation equal, Evaluate(load, placement));
  v1::Window window;
  window.set_window(t);
  window.set_first_step(steps.first);
  window.set_last_step(steps.last);
  for (int64_t version = settled_; version <= version_; ++version) window.add_versions(version);
  window.set_tokens(load.counts().sum());
  window.set_split(wire::SplitName(replay_.split));
  window.set_has_loads(documents_.KeepsLoads(t));
  if (row.balancedness) {  // a window without tokens has none of the four
    window.set_balancedness(*row.balancedness);
    window.set_balancedness_equal(equal.mean_balancedness.value_or(0));
    window.set_balancedness_static(row.balancedness_static.value_or(0));
    window.set_balancedness_without_eplb(row.balancedness_without_eplb.value_or(0));
  }
  documents_.AddWindow(window);
  if (!window.has_loads()) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const Evaluation still, Evaluate(load, unmoved_));
  documents_.AddLoads(window, {load, equal.gpu_loads, still.gpu_loads});
  documents_.AddPlacement(version_, newest_);
  return absl::OkStatus();
}

absl::Status ReplayPage::AddPlan(int64_t t, const ReplayRow& row, const Placement& placement) {
  v1::Plan plan;
  plan.set_plan(t);
  plan.set_policy(options_.policy.name);
  plan.set_reason(row.reason);
  plan.set_split(wire::SplitName(replay_.split));
  plan.set_base_version(version_);
  if (!options_.policy.chooses) {
    const int64_t oldest = std::max<int64_t>(t - replay_.history, 0);
    plan.set_decided_first_step(trace_.steps[static_cast<size_t>(oldest)].first);
    plan.set_decided_last_step(trace_.steps[static_cast<size_t>(t - 1)].last);
  }
  if (row.prediction) {
    plan.set_balancedness_predicted(row.prediction->balancedness);
    if (row.prediction->error) plan.set_prediction_error(*row.prediction->error);
    plan.set_prediction_evidence(row.prediction->evidence);
  }
  if (row.rebalanced) {
    plan.set_num_chunks(static_cast<uint32_t>(row.chunks));
    plan.set_chunks_committed(static_cast<uint32_t>(row.chunks));
    plan.set_first_version(++version_);
    plan.set_last_version(version_);
    settles_at_ = row.switched_step.value_or(0);
    if (settles_at_ > 0) plan.set_switched_step(static_cast<uint64_t>(settles_at_ - 1));
    plan.set_transfers(row.transfers);
    if (replay_.costs.priced()) {
      plan.set_received_bytes(row.bytes);
      plan.set_migration_seconds(row.migration_seconds);
    }
    EPLB_RETURN_IF_ERROR(documents_.AddTraffic(plan, newest_, placement));
  }
  PageJson json = KnownJson(plan);
  json["result"] = row.rebalanced ? "rebalanced" : "kept";
  json["decided_by"] = NameOf(*row.rule);
  const size_t added = documents_.AddPlan(std::move(json));
  if (row.rebalanced) unseen_ = added;
  return absl::OkStatus();
}

void ReplayPage::SetJob(const ReplayResult& result) {
  const ReplaySummary& summary = result.summary;
  v1::JobStatus& job = documents_.status();
  job.set_end_reason(absl::StrFormat(
      "Replayed, nothing ran: policy %s decided on %s. Balancedness is %s, without EPLB %s "
      "(computed, mean of the windows with tokens).",
      options_.policy.name, Counted(std::ssize(trace_.windows), "window"),
      FigureText(summary.balancedness_mean, 3),
      FigureText(summary.balancedness_without_eplb_mean, 3)));
  job.set_step(trace_.steps.back().last);
  job.set_version(version_);
  const Digest digest = DigestOf(newest_);
  job.set_digest(std::string(digest.bytes.begin(), digest.bytes.end()));
  if (summary.balancedness_mean) {
    job.set_balancedness(*summary.balancedness_mean);
    job.set_balancedness_static(summary.balancedness_static_mean.value_or(0));
    job.set_balancedness_without_eplb(summary.balancedness_without_eplb_mean.value_or(0));
    if (replay_.costs.token_seconds > 0) job.set_saved_seconds(summary.seconds_saved);
  }
  if (replay_.costs.priced()) job.set_spent_seconds(summary.seconds_spent);
  job.set_measured_first_step(trace_.steps.front().first);
  job.set_measured_last_step(trace_.steps.back().last);
  job.set_split(wire::SplitName(replay_.split));
  job.set_measured_split(job.split());
  job.mutable_policy()->set_name(options_.policy.name);
  for (const CandidateScore& one : result.candidates) {
    v1::TriedCandidate& candidate = *job.add_candidates();
    candidate.set_name(NameOf(one.candidate));
    candidate.set_windows(one.windows);
    if (one.balancedness) candidate.set_balancedness(*one.balancedness);
    if (replay_.costs.token_seconds > 0) candidate.set_net_seconds(one.total());
    if (one.realized) candidate.set_realized(*one.realized);
  }
  PageJson& further = documents_.further_status();
  further["state"] = "REPLAYED";
  if (peaks_without_eplb_ > 0) further["peak_fall"] = 1 - peaks_ / peaks_without_eplb_;
}

PageJson ReplayPage::Finish(const ReplayResult& result) {
  SetJob(result);
  return documents_.Finish(absl::StrCat("by eplbctl ", EPLB_VERSION, " from ", options_.trace));
}

}  // namespace eplb::cli
