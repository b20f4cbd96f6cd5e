// The web page of a recorded run: `eplbctl report --html`.
#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "client/cli/page_documents.h"
#include "client/cli/report_forms.h"
#include "placement/evaluate.h"
#include "placement/replay/run_figures.h"
#include "placement/without_eplb.h"

#include "eplb/v1/query.pb.h"

namespace eplb::cli {
namespace {

constexpr int kMaxProblems = 20;

// The end of a step on rank 0's wall clock; 0: run.json does not know it.
int64_t EndOfStep(const RunReport& report, uint64_t step) {
  if (report.began_at <= 0 || step >= report.steps.size()) return 0;
  const StepRecord& record = report.steps[step];
  return std::llround((report.began_at + record.began + record.seconds) * 1e6);
}

// One run on its way into documents. threads: a value, not safe.
class RunPageMaker {
 public:
  RunPageMaker(const RunDirectory& run, const v1::RunReview& review)
      : run_(run),
        review_(review),
        steps_(run.step_loads),
        window_steps_(std::max<int64_t>(
            std::min(review.balancedness().hindsight_window_steps(), std::ssize(run.step_loads)),
            1)),
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
    for (int i = 0; i < std::min(review_.problems_size(), kMaxProblems); ++i) {
      documents_.AddWarning(absl::StrCat("Not verified: ", review_.problems(i)));
    }
    if (review_.problems_size() > kMaxProblems) {
      documents_.AddWarning(
          absl::StrCat("Not verified: ", review_.problems_size() - kMaxProblems, " more problems"));
    }
    return documents_.Finish(absl::StrCat("by eplbctl ", EPLB_VERSION, " from ", from));
  }

 private:
  // REQUIRES: run.placements has the version.
  const Placement& Placed(int64_t version) const {
    return std::ranges::find(run_.placements, version, &LoggedPlacement::version)->placement;
  }
  int64_t NumWindows() const { return (std::ssize(steps_) + window_steps_ - 1) / window_steps_; }

  absl::Status AddWindow(int64_t index) {
    const StepSpan span{.first = index * window_steps_,
                        .last = std::min((index + 1) * window_steps_, std::ssize(steps_)) - 1};
    RealMatrix on_gpus = RealMatrix::Zero(topology_.num_layers(), topology_.num_gpus());
    v1::Window window;
    window.set_window(index + 1);
    window.set_completed_unix_micros(EndOfStep(run_.report, span.last));
    window.set_run_id(run_.report.run_id);
    window.set_first_step(span.first);
    window.set_last_step(span.last);
    window.set_split(review_.split());
    window.set_has_loads(documents_.KeepsLoads(index));
    if (const auto seconds = SecondsOfStep(span)) window.set_step_seconds(*seconds);
    for (size_t i = 0; i < in_force_.size(); ++i) {
      const int64_t first = std::max(span.first, in_force_[i].step);
      const int64_t end = i + 1 < in_force_.size() ? in_force_[i + 1].step : std::ssize(steps_);
      const int64_t last = std::min(span.last, end - 1);
      if (first > last) continue;
      EPLB_ASSIGN_OR_RETURN(const Load part, SumLoads(steps_, first, last));
      EPLB_ASSIGN_OR_RETURN(const Evaluation ran, Evaluate(part, in_force_[i].placement));
      on_gpus += ran.gpu_loads;
      window.add_versions(run_.placements[i].version);
    }
    EPLB_ASSIGN_OR_RETURN(const Load load, SumLoads(steps_, span.first, span.last));
    EPLB_ASSIGN_OR_RETURN(const Evaluation still, Evaluate(load, unmoved_));
    window.set_tokens(load.counts().sum());
    EPLB_RETURN_IF_ERROR(MeasureWindow(span, window));
    documents_.AddWindow(window);
    if (!window.has_loads()) return absl::OkStatus();
    documents_.AddLoads(window, {load, on_gpus, still.gpu_loads});
    const auto newest = static_cast<int64_t>(*window.versions().rbegin());
    documents_.AddPlacement(newest, Placed(newest));
    return absl::OkStatus();
  }

  absl::Status MeasureWindow(const StepSpan& span, v1::Window& window) const {
    EPLB_ASSIGN_OR_RETURN(const std::optional<double> measured,
                          MeasuredBalancedness(steps_, in_force_, span, run_.report.split));
    EPLB_ASSIGN_OR_RETURN(const std::optional<double> equal,
                          MeasuredBalancedness(steps_, in_force_, span));
    EPLB_ASSIGN_OR_RETURN(
        const std::optional<double> unmoved,
        LayoutBalancedness(steps_, span, run_.report.split,
                           [this](const Load& one) { return Evaluate(one, unmoved_); }));
    EPLB_ASSIGN_OR_RETURN(
        const std::optional<double> without,
        LayoutBalancedness(steps_, span, run_.report.split, [this](const Load& one) {
          return EvaluateWithoutEplb(one, topology_.num_gpus());
        }));
    if (measured) window.set_balancedness(*measured);
    if (equal) window.set_balancedness_equal(*equal);
    if (unmoved) window.set_balancedness_static(*unmoved);
    if (without) window.set_balancedness_without_eplb(*without);
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
    for (const v1::RunDecision& decision : review_.decisions()) {
      const v1::Plan& plan = decision.plan();
      EPLB_RETURN_IF_ERROR(
          documents_.AddTraffic(plan, Placed(plan.base_version()), Placed(plan.last_version())));
      PageJson json = DecisionJson(decision);
      // The page shows the steps until the next switch as what followed.
      json["balancedness_seen"] = PageJson(json["balancedness_until_next"]);
      json["seen_first_step"] = decision.until_next_first_step();
      json["seen_last_step"] = decision.until_next_last_step();
      const int64_t switched = EndOfStep(run_.report, plan.switched_step());
      json["switched_unix_micros"] = switched > 0 ? PageJson(switched) : PageJson();
      documents_.AddPlan(std::move(json));
    }
    return absl::OkStatus();
  }

  void AddEvents() {
    if (!run_.events) return;
    for (const LoggedEvent& logged : run_.events->events) {
      v1::JobEvent event;
      event.set_sequence(logged.sequence);
      event.set_unix_micros(logged.unix_micros);
      event.set_job(run_.events->job);
      event.set_name(logged.name);
      event.set_reason(logged.reason);
      event.set_actor(logged.actor);
      event.set_before(logged.before);
      event.set_after(logged.after);
      documents_.AddEvent(event);
    }
  }

  void SetJob() {
    v1::JobStatus& job = documents_.status();
    const RunReport& report = run_.report;
    job.set_run_id(report.run_id);
    job.set_state(report.error.empty() ? v1::JOB_STATE_FINISHED : v1::JOB_STATE_FAILED);
    job.set_end_reason(report.error);
    job.set_world_size(static_cast<uint32_t>(report.world_size));
    job.set_step(std::ssize(steps_) - 1);
    job.set_version(run_.placements.back().version);
    const Digest& digest = run_.placements.back().digest;
    job.set_digest(std::string(digest.bytes.begin(), digest.bytes.end()));
    const v1::RunComparison& rows = review_.comparison();
    if (review_.balancedness().has_run()) {  // otherwise no step has tokens
      job.set_balancedness(review_.balancedness().run());
      job.set_balancedness_without_eplb(review_.balancedness().without_eplb());
      job.set_balancedness_static(review_.balancedness().static_());
    }
    job.set_measured_first_step(rows.first_step());
    job.set_measured_last_step(job.step());
    job.set_split(review_.split());
    job.set_measured_split(job.split());
    if (!report.steps.empty()) {
      job.set_spent_seconds(review_.time().boundary_seconds());
      job.set_step_seconds(review_.time().measured_seconds() /
                           static_cast<double>(report.steps.size()));
    }
    SetSaved(job);
    job.mutable_policy()->set_name(PolicyOfAll());
    for (const RankHistory& history : run_.histories) SetRank(history, *job.add_ranks());
    PageJson& further = documents_.further_status();
    further["peak_fall"] = review_.has_time_saved() ? PageJson(review_.time_saved()) : PageJson();
    further["events_known"] = review_.has_operators();
    further["account_from_log"] = !HasAccount();
  }

  bool HasAccount() const { return run_.account && run_.account->run_id == run_.report.run_id; }

  // The daemon's figures, where the directory has them: they are those of every other view.
  void SetSaved(v1::JobStatus& job) const {
    const v1::RunComparison& rows = review_.comparison();
    if (HasAccount()) {
      const LoggedAccount& account = *run_.account;
      job.clear_spent_seconds();
      if (account.saved_seconds) job.set_saved_seconds(*account.saved_seconds);
      if (account.spent_seconds) job.set_spent_seconds(*account.spent_seconds);
      job.set_saved_basis(account.saved_basis);
      job.set_saved_is_assumed(account.saved_is_assumed);
    } else if (review_.time().modelled() && review_.has_time_saved()) {
      job.set_saved_seconds(rows.without_eplb_predicted().total_seconds() -
                            review_.time().measured_seconds());
      job.set_saved_basis(
          "predicted time of all steps with one slot per expert, less their measured time, "
          "boundaries included");
    } else {
      job.set_saved_basis("not known: these steps do not last in proportion to their load");
    }
  }

  // The policy that made each decision; empty: there were several, or none.
  std::string PolicyOfAll() const {
    std::string name;
    for (const v1::RunDecision& decision : review_.decisions()) {
      const std::string& policy = decision.plan().policy();
      if (policy == kRollbackPolicy) continue;
      if (!name.empty() && policy != name) return "";
      name = policy;
    }
    return name;
  }

  void SetRank(const RankHistory& history, v1::RankStatus& rank) const {
    using Kind = HistoryRecord::Kind;
    rank.set_rank(static_cast<uint32_t>(history.rank.value));
    rank.mutable_transport()->set_name(run_.report.transport);
    const bool stopped = history.records.back().kind == Kind::kStop;
    rank.set_state(stopped ? v1::RANK_STATE_FINISHED : v1::RANK_STATE_LOST);
    for (const HistoryRecord& record : history.records) {
      if (record.kind == Kind::kStart || record.kind == Kind::kCommit) {
        rank.set_running_version(record.version);
      }
      if (record.kind == Kind::kPrepared) rank.set_prepared_version(record.version);
      if (record.kind == Kind::kStep) rank.set_step(record.last_step);
    }
  }

  const RunDirectory& run_;
  const v1::RunReview& review_;
  const std::span<const Load> steps_;
  const int64_t window_steps_;  // no more than there are steps
  const Topology& topology_;
  const Placement unmoved_;
  std::vector<RunPlacement> in_force_;
  PageDocuments documents_;
};

}  // namespace

absl::StatusOr<PageJson> RunPage(const RunDirectory& run, const v1::RunReview& review,
                                 const std::string& from) {
  return RunPageMaker(run, review).Make(from);
}

}  // namespace eplb::cli
