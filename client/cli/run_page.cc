// The web page of a recorded run: `eplbctl report --html`.
#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/cli/page_documents.h"
#include "client/cli/report_forms.h"
#include "placement/evaluate.h"
#include "placement/replay/run_figures.h"
#include "placement/without_eplb.h"
#include "proto/wire/message_json.h"
#include "proto/wire/messages.h"

#include "eplb/v1/query.pb.h"

namespace eplb::cli {
namespace {

constexpr size_t kMaxProblems = 20;

// The end of a step on rank 0's wall clock; none: run.json does not know it.
std::optional<int64_t> EndOfStep(const RunReport& report, int64_t step) {
  if (report.began_at <= 0 || step < 0 || step >= std::ssize(report.steps)) return std::nullopt;
  const StepRecord& record = report.steps[static_cast<size_t>(step)];
  return std::llround((report.began_at + record.began + record.seconds) * 1e6);
}

// One run on its way into documents. threads: a value, not safe.
class RunPageMaker {
 public:
  RunPageMaker(const RunDirectory& run, const RunReview& review)
      : run_(run),
        review_(review),
        steps_(run.step_loads),
        window_steps_(
            std::max<int64_t>(std::min(review.window_steps, std::ssize(run.step_loads)), 1)),
        topology_(run.placements.front().placement.topology()),
        unmoved_(Placement::Static(topology_)),
        documents_("run", run.report.job, topology_, NumWindows()) {
    for (const LoggedPlacement& one : run.placements) {
      in_force_.push_back({.step = one.step, .placement = one.placement});
    }
  }

  absl::StatusOr<PageJson> Make(const std::string& from) {
    for (int64_t index = 0; index < NumWindows(); ++index) {
      if (documents_.KeepsWindow(index)) EPLB_RETURN_IF_ERROR(AddWindow(index));
    }
    EPLB_RETURN_IF_ERROR(AddPlans());
    AddEvents();
    SetJob();
    for (size_t i = 0; i < std::min(review_.problems.size(), kMaxProblems); ++i) {
      documents_.AddWarning(absl::StrCat("Not verified: ", review_.problems[i]));
    }
    if (review_.problems.size() > kMaxProblems) {
      documents_.AddWarning(
          absl::StrCat("Not verified: ", review_.problems.size() - kMaxProblems, " more problems"));
    }
    return documents_.Finish(absl::StrCat("by eplbctl ", EPLB_VERSION, " from ", from));
  }

 private:
  std::vector<LoggedPlacement>::const_iterator Placed(int64_t version) const {
    return std::ranges::find(run_.placements, version, &LoggedPlacement::version);
  }
  int64_t NumWindows() const { return (std::ssize(steps_) + window_steps_ - 1) / window_steps_; }

  absl::Status AddWindow(int64_t index) {
    const StepSpan span{.first = index * window_steps_,
                        .last = std::min((index + 1) * window_steps_, std::ssize(steps_)) - 1};
    RealMatrix on_gpus = RealMatrix::Zero(topology_.num_layers(), topology_.num_gpus());
    PageWindow window{.window = index + 1,
                      .completed_unix_micros = EndOfStep(run_.report, span.last),
                      .run_id = run_.report.run_id,
                      .first_step = span.first,
                      .last_step = span.last,
                      .step_seconds = SecondsOfStep(span),
                      .split = review_.split};
    for (size_t i = 0; i < in_force_.size(); ++i) {
      const int64_t first = std::max(span.first, in_force_[i].step);
      const int64_t end = i + 1 < in_force_.size() ? in_force_[i + 1].step : std::ssize(steps_);
      const int64_t last = std::min(span.last, end - 1);
      if (first > last) continue;
      EPLB_ASSIGN_OR_RETURN(const Load part, SumLoads(steps_, first, last));
      EPLB_ASSIGN_OR_RETURN(const Evaluation ran, Evaluate(part, in_force_[i].placement));
      on_gpus += ran.gpu_loads;
      window.versions.push_back(run_.placements[i].version);
    }
    EPLB_ASSIGN_OR_RETURN(const Load load, SumLoads(steps_, span.first, span.last));
    EPLB_ASSIGN_OR_RETURN(const Evaluation still, Evaluate(load, unmoved_));
    EPLB_ASSIGN_OR_RETURN(window.balancedness,
                          MeasuredBalancedness(steps_, in_force_, span, review_.split));
    EPLB_ASSIGN_OR_RETURN(window.balancedness_equal, MeasuredBalancedness(steps_, in_force_, span));
    EPLB_ASSIGN_OR_RETURN(window.balancedness_static,
                          LayoutBalancedness(steps_, span, review_.split, [this](const Load& one) {
                            return Evaluate(one, unmoved_);
                          }));
    EPLB_ASSIGN_OR_RETURN(window.balancedness_without_eplb,
                          LayoutBalancedness(steps_, span, review_.split, [this](const Load& one) {
                            return EvaluateWithoutEplb(one, topology_.num_gpus());
                          }));
    window.tokens = load.counts().sum();
    const bool keeps = documents_.KeepsLoads(index);
    documents_.AddWindow(window, keeps);
    if (!keeps) return absl::OkStatus();
    documents_.AddLoads(window, {load, on_gpus, still.gpu_loads});
    const auto newest = Placed(window.versions.back());
    documents_.AddPlacement(newest->version, newest->placement);
    return absl::OkStatus();
  }

  // The mean of rank 0's clock, boundaries included; none: run.json does not have them all.
  std::optional<double> SecondsOfStep(const StepSpan& span) const {
    if (span.last >= std::ssize(run_.report.steps)) return std::nullopt;
    double sum = 0;
    for (int64_t step = span.first; step <= span.last; ++step) {
      sum += run_.report.steps[static_cast<size_t>(step)].seconds;
    }
    return sum / static_cast<double>(span.last - span.first + 1);
  }

  absl::Status AddPlans() {
    const std::vector<std::vector<SwitchRecord>> chunks = ByDecision(run_.report.switches);
    const bool numbered =
        std::ranges::all_of(chunks, [](const auto& one) { return one.front().decision > 0; });
    for (size_t i = 0; i < chunks.size(); ++i) {
      const RunDecision& decision = review_.decisions[i];
      PageJson plan = PlanJson(decision);
      plan["plan"] = numbered ? decision.decision : static_cast<int64_t>(i + 1);
      plan["num_chunks"] = chunks[i].size();
      plan["chunks_committed"] = chunks[i].size();
      const auto first = Placed(chunks[i].front().version);
      const auto last = Placed(chunks[i].back().version);
      if (first == run_.placements.begin() || first == run_.placements.end() ||
          last == run_.placements.end()) {
        return InvalidInput("run.json switched to version ", chunks[i].front().version,
                            ", expected placements.jsonl to have it and one before it");
      }
      plan["base_version"] = std::prev(first)->version;
      plan["first_version"] = first->version;
      plan["last_version"] = last->version;
      EPLB_RETURN_IF_ERROR(
          documents_.AddTraffic(plan, std::prev(first)->placement, last->placement));
      documents_.AddPlan(std::move(plan));
    }
    return absl::OkStatus();
  }

  // A decision as the review has it. It was committed, for the run switched.
  PageJson PlanJson(const RunDecision& decision) const {
    PageJson plan = UnknownJson(v1::Plan());
    const int64_t switched = decision.switch_steps.back();
    const std::optional<int64_t> switched_at = EndOfStep(run_.report, switched);
    plan["policy"] = decision.policy;
    plan["result"] = wire::EnumText(v1::PLAN_RESULT_COMMITTED);
    plan["reason"] = decision.reason;
    plan["asked_by"] = decision.asked_by;
    plan["switched_step"] = switched;
    plan["switched_unix_micros"] = JsonOrNull(switched_at);
    plan["received_bytes"] = decision.bytes_moved;
    plan["pause_seconds"] = decision.pause_seconds;
    plan["split"] = wire::SplitName(review_.split);
    if (decision.decided_first_step <= decision.decided_last_step) {
      plan["decided_first_step"] = decision.decided_first_step;
      plan["decided_last_step"] = decision.decided_last_step;
      plan["balancedness_before"] = JsonOrNull(decision.before);
      plan["balancedness_computed"] = JsonOrNull(decision.computed);
    }
    plan["balancedness_seen"] = JsonOrNull(decision.until_next);
    if (decision.until_next) {
      plan["seen_first_step"] = decision.until_next_first_step;
      plan["seen_last_step"] = decision.until_next_last_step;
    }
    SetDecidedAt(plan);
    return plan;
  }

  // The daemon's own line of it, where there is one, knows when.
  void SetDecidedAt(PageJson& plan) const {
    if (!run_.events) return;
    for (const LoggedEvent& event : run_.events->events) {
      if (event.name != "proposed" || plan["reason"] != event.reason) continue;
      plan["unix_micros"] = event.unix_micros;
      plan["time"] = wire::TimeText(event.unix_micros);
      return;
    }
  }

  void AddEvents() {
    if (!run_.events) return;
    for (const LoggedEvent& event : run_.events->events) {
      PageJson json = UnknownJson(v1::JobEvent());
      json["sequence"] = event.sequence;
      json["unix_micros"] = event.unix_micros;
      json["time"] = wire::TimeText(event.unix_micros);
      json["job"] = run_.events->job;
      json["name"] = event.name;
      json["reason"] = event.reason;
      json["actor"] = event.actor;
      json["before"] = event.before;
      json["after"] = event.after;
      documents_.AddEvent(std::move(json));
    }
  }

  void SetJob() {
    PageJson& job = documents_.status();
    const RunReport& report = run_.report;
    job["run_id"] = report.run_id;
    job["state"] =
        wire::EnumText(report.error.empty() ? v1::JOB_STATE_FINISHED : v1::JOB_STATE_FAILED);
    job["end_reason"] = report.error;
    job["world_size"] = report.world_size;
    job["step"] = std::ssize(steps_) - 1;
    job["version"] = run_.placements.back().version;
    job["digest"] = run_.placements.back().digest.Hex();
    job["balancedness"] = JsonOrNull(review_.run.balancedness);
    job["balancedness_without_eplb"] = JsonOrNull(review_.without_eplb.balancedness);
    job["balancedness_static"] = JsonOrNull(review_.unmoved.balancedness);
    job["measured_first_step"] = review_.compared_first_step;
    job["measured_last_step"] = std::ssize(steps_) - 1;
    job["split"] = wire::SplitName(review_.split);
    job["measured_split"] = wire::SplitName(review_.split);
    job["peak_fall"] = JsonOrNull(review_.time_saved());
    if (!report.steps.empty()) job["spent_seconds"] = review_.time.boundary_seconds;
    if (review_.time.modelled && review_.time_saved()) {
      job["saved_seconds"] = review_.without_eplb.total_seconds - review_.run.total_seconds;
    }
    if (!report.steps.empty()) {
      job["step_seconds"] =
          review_.time.measured_seconds / static_cast<double>(report.steps.size());
    }
    if (!review_.decisions.empty()) job["last_reason"] = review_.decisions.back().reason;
    job["policy"] = {{"name", PolicyOfAll()}, {"mode", ""}};
    job["events_known"] = run_.events.has_value();
    for (const RankHistory& history : run_.histories) job["ranks"].push_back(RankJson(history));
  }

  // The policy that made each decision; empty: there were several, or none.
  std::string PolicyOfAll() const {
    std::string name;
    for (const RunDecision& decision : review_.decisions) {
      if (decision.policy == kRollbackPolicy) continue;
      if (!name.empty() && decision.policy != name) return "";
      name = decision.policy;
    }
    return name;
  }

  PageJson RankJson(const RankHistory& history) const {
    PageJson rank = UnknownJson(v1::RankStatus());
    rank["rank"] = history.rank.value;
    rank["transport"] = {{"name", run_.report.transport}};
    const bool stopped = history.records.back().kind == HistoryRecord::Kind::kStop;
    rank["state"] = wire::EnumText(stopped ? v1::RANK_STATE_FINISHED : v1::RANK_STATE_LOST);
    for (const HistoryRecord& record : history.records) {
      using Kind = HistoryRecord::Kind;
      if (record.kind == Kind::kStart || record.kind == Kind::kCommit) {
        rank["running_version"] = record.version;
      }
      if (record.kind == Kind::kPrepared) rank["prepared_version"] = record.version;
      if (record.kind == Kind::kStep) rank["step"] = record.last_step;
    }
    return rank;
  }

  const RunDirectory& run_;
  const RunReview& review_;
  const std::span<const Load> steps_;
  const int64_t window_steps_;  // no more than there are steps
  const Topology& topology_;
  const Placement unmoved_;
  std::vector<RunPlacement> in_force_;
  PageDocuments documents_;
};

}  // namespace

absl::StatusOr<PageJson> RunPage(const RunDirectory& run, const RunReview& review,
                                 const std::string& from) {
  return RunPageMaker(run, review).Make(from);
}

}  // namespace eplb::cli
