#include "client/cli/replay_page.h"

#include <algorithm>
#include <filesystem>
#include <optional>
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
      left_(unmoved_),
      newest_(unmoved_) {
  documents_.LeaveOut("ranks");
}

absl::Status ReplayPage::Ran(const ReplayedWindow& window) {
  const ReplayRow& row = window.rows.back();
  const int64_t t = std::ssize(window.rows) - 1;
  if (row.rebalanced) {
    EPLB_RETURN_IF_ERROR(AddTraffic(window.rows, window.left));
    decided_.push_back(static_cast<size_t>(t));
    left_ = window.left;
    newest_ = window.target;
  }
  FindVersions(window.rows);
  if (documents_.KeepsWindow(t)) EPLB_RETURN_IF_ERROR(AddWindow(window));
  peaks_without_eplb_ += row.peak_load_without_eplb;
  peaks_ += row.peak_load;
  return absl::OkStatus();
}

// A step runs under the newest version of which a chunk is in force.
void ReplayPage::FindVersions(std::span<const ReplayRow> rows) {
  const StepRange& steps = trace_.steps[rows.size() - 1];
  ran_ = {ran_.back()};
  for (int64_t next = ran_.back() + 1; next <= version(); ++next) {
    const ReplayRow& decided = rows[decided_[static_cast<size_t>(next - 1)]];
    if (!decided.begins_step || *decided.begins_step > steps.last) continue;
    if (*decided.begins_step <= steps.first) ran_.clear();
    ran_.push_back(next);
  }
}

absl::Status ReplayPage::AddWindow(const ReplayedWindow& ran) {
  const size_t t = ran.rows.size() - 1;
  const ReplayRow& row = ran.rows.back();
  const Load& load = trace_.windows[t];
  v1::Window window;
  window.set_window(t);
  window.set_first_step(trace_.steps[t].first);
  window.set_last_step(trace_.steps[t].last);
  for (const int64_t version : ran_) window.add_versions(version);
  window.set_tokens(load.counts().sum());
  window.set_split(wire::SplitName(replay_.split));
  window.set_has_loads(documents_.KeepsLoads(static_cast<int64_t>(t)));
  if (row.balancedness) {  // a window without tokens has none of the four
    window.set_balancedness(*row.balancedness);
    window.set_balancedness_equal(ran.equal.mean_balancedness.value_or(0));
    window.set_balancedness_static(row.balancedness_static.value_or(0));
    window.set_balancedness_without_eplb(row.balancedness_without_eplb.value_or(0));
  }
  documents_.AddWindow(window);
  if (!window.has_loads()) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const Evaluation still, Evaluate(load, unmoved_));
  documents_.AddLoads(window, {load, ran.equal.gpu_loads, still.gpu_loads});
  documents_.AddPlacement(ran_.back(), ran_.back() == version() ? newest_ : left_);
  return absl::OkStatus();
}

// Adds the transfers of the newest version. reached: what it is in the end.
absl::Status ReplayPage::AddTraffic(std::span<const ReplayRow> rows, const Placement& reached) {
  if (decided_.empty()) return absl::OkStatus();
  v1::Plan plan;
  plan.set_plan(decided_.back());
  plan.set_base_version(version() - 1);
  plan.set_last_version(version());
  if (replay_.costs.priced()) plan.set_received_bytes(rows[decided_.back()].bytes);
  return documents_.AddTraffic(plan, left_, reached);
}

// version: once the plan is in force.
PageJson ReplayPage::PlanOf(int64_t t, const ReplayRow& row, int64_t version) const {
  v1::Plan plan;
  plan.set_plan(t);
  plan.set_policy(options_.policy.name);
  plan.set_reason(row.reason);
  plan.set_split(wire::SplitName(replay_.split));
  plan.set_base_version(row.rebalanced ? version - 1 : version);
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
    plan.set_chunks_committed(static_cast<uint32_t>(row.chunks_committed));
    plan.set_first_version(version);
    plan.set_last_version(version);
    if (const int64_t step = row.switched_step.value_or(0); step > 0) {
      plan.set_switched_step(static_cast<uint64_t>(step - 1));
    }
    plan.set_transfers(row.transfers);
    if (replay_.costs.priced()) {
      plan.set_received_bytes(row.bytes);
      plan.set_migration_seconds(row.migration_seconds);
    }
  }
  PageJson json = KnownJson(plan);
  json["result"] = row.rebalanced ? "rebalanced" : "kept";
  json["decided_by"] = NameOf(*row.rule);
  return json;
}

// The first window that ran under a version alone shows what its plan reached.
void ReplayPage::AddPlans(std::span<const ReplayRow> rows) {
  int64_t version = 0;
  std::optional<size_t> unseen;
  int64_t settles_at = 0;  // first step under `version` alone
  for (size_t t = 0; t < rows.size(); ++t) {
    const ReplayRow& row = rows[t];
    version += row.rebalanced ? 1 : 0;
    if (row.rule) {
      const size_t added = documents_.AddPlan(PlanOf(static_cast<int64_t>(t), row, version));
      if (row.rebalanced) {
        unseen.reset();
        if (row.chunks_committed == row.chunks) unseen = added;
        settles_at = row.switched_step.value_or(0);
      }
    }
    const StepRange& steps = trace_.steps[t];
    if (!unseen || !row.balancedness || steps.first < settles_at) continue;
    PageJson& plan = documents_.plan(*unseen);
    plan["balancedness_seen"] = *row.balancedness;
    plan["seen_first_step"] = steps.first;
    plan["seen_last_step"] = steps.last;
    unseen.reset();
  }
}

void ReplayPage::SetJob(const ReplayResult& result) {
  const ReplaySummary& summary = result.summary;
  v1::JobStatus& job = documents_.status();
  job.set_end_reason(
      absl::StrFormat("Replayed, nothing ran: policy %s on %s. Balancedness is %s, without EPLB %s "
                      "(computed, mean of the windows with tokens).",
                      options_.policy.name, Counted(std::ssize(trace_.windows), "window"),
                      FigureText(summary.balancedness_mean, 3),
                      FigureText(summary.balancedness_without_eplb_mean, 3)));
  job.set_step(trace_.steps.back().last);
  job.set_version(version());
  const Digest digest = DigestOf(newest_);
  job.set_digest(std::string(digest.bytes.begin(), digest.bytes.end()));
  if (summary.balancedness_mean) {
    job.set_balancedness(*summary.balancedness_mean);
    job.set_balancedness_static(summary.balancedness_static_mean.value_or(0));
    job.set_balancedness_without_eplb(summary.balancedness_without_eplb_mean.value_or(0));
  }
  job.set_saved_basis("not known: give --expert-bytes");
  if (replay_.costs.priced()) job.set_spent_seconds(summary.seconds_spent);
  if (summary.balancedness_mean && replay_.costs.token_seconds > 0 && replay_.costs.priced()) {
    job.set_saved_seconds(summary.seconds_saved - summary.seconds_spent);
    job.set_saved_basis(
        "computed: fullest GPUs against one slot per expert, less migrations and replicas");
  }
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

absl::StatusOr<PageJson> ReplayPage::Finish(const ReplayResult& result) {
  EPLB_RETURN_IF_ERROR(AddTraffic(result.rows, newest_));
  AddPlans(result.rows);
  SetJob(result);
  return documents_.Finish(absl::StrCat("by eplbctl ", EPLB_VERSION, " from ", options_.trace));
}

}  // namespace eplb::cli
