#include "server/http/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace eplb {

namespace {

// Prometheus itself gives every sample the label `job`, of the scrape, and would rename ours.
constexpr char kJobLabel[] = "training_job";

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

double FiniteSample(double value) { return std::isfinite(value) ? value : 0; }

// Builds families in the order of the page.
class Page {
 public:
  // Samples that follow belong to this family.
  void Family(MetricType type, const char* name, const char* help) {
    families_.push_back({.name = name, .help = help, .type = type, .metric = {}});
  }
  void Sample(double value, Labels labels = {}) {
    ClientMetric& metric = Add(std::move(labels));
    if (families_.back().type == MetricType::Counter) {
      metric.counter.value = FiniteSample(value);
    } else {
      metric.gauge.value = FiniteSample(value);
    }
  }
  void Sample(const core::Buckets& view, Labels labels = {}) {
    ClientMetric::Histogram& histogram = Add(std::move(labels)).histogram;
    uint64_t sum = 0;
    for (size_t i = 0; i < view.counts.size(); ++i) {
      sum += static_cast<uint64_t>(view.counts[i]);
      const bool last = i == core::Buckets::kBounds.size();
      histogram.bucket.push_back({.cumulative_count = sum,
                                  .upper_bound = last ? std::numeric_limits<double>::infinity()
                                                      : core::Buckets::kBounds[i]});
    }
    histogram.sample_count = sum;
    histogram.sample_sum = FiniteSample(view.sum_seconds);
  }
  // Without a family that has no sample.
  std::vector<MetricFamily> Take() {
    std::erase_if(families_, [](const MetricFamily& family) { return family.metric.empty(); });
    return std::move(families_);
  }

 private:
  ClientMetric& Add(Labels labels) {
    ClientMetric& metric = families_.back().metric.emplace_back();
    metric.label = std::move(labels);
    return metric;
  }
  std::vector<MetricFamily> families_;
};

void AddDaemon(const MetricsSnapshot& s, Page& page) {
  page.Family(MetricType::Gauge, "eplb_build_info", "Always 1; the labels name what runs.");
  page.Sample(1, {{"version", s.version}, {"grpc_version", s.grpc_version}});
  page.Family(MetricType::Gauge, "eplb_ready",
              "1 while the daemon can propose to any job, as /readyz: the store takes writes "
              "and nothing is drained; else 0.");
  page.Sample(s.ready ? 1 : 0);
  page.Family(
      MetricType::Gauge, "eplb_leader",
      "1 while this daemon serves its jobs; 0 while another one does (docs/high-availability.md), "
      "and once it drains.");
  page.Sample(s.draining || s.standby ? 0 : 1);
  page.Family(MetricType::Gauge, "eplb_standby",
              "1 while this daemon waits to be elected by the store that it shares; else 0.");
  page.Sample(s.standby ? 1 : 0);
  page.Family(
      MetricType::Gauge, "eplb_term",
      "Leadership number; rises at every start. Of a standby: that of the leader it knows.");
  page.Sample(static_cast<double>(s.term));
  page.Family(MetricType::Gauge, "eplb_sessions", "Open streams of ranks, of all jobs.");
  page.Sample(static_cast<double>(s.sessions));
  page.Family(MetricType::Counter, "eplb_session_disconnects_total",
              "Streams that ended, by reason.");
  for (const auto& [reason, count] : s.session_disconnects_by_reason) {
    page.Sample(static_cast<double>(count), {{"reason", reason}});
  }
  page.Family(MetricType::Counter, "eplb_refusals_total",
              "Connections, streams and calls that were refused, by kind: unauthenticated, denied "
              "(role or job), limited, malformed, handshake (or no byte of one), unknown_message "
              "(skipped), crowded (more connections than the limit of open files has room for), "
              "rank (its Hello or a report of it).");
  for (const auto& [kind, count] : s.refusals_by_kind) {
    page.Sample(static_cast<double>(count), {{"kind", kind}});
  }
  page.Family(MetricType::Counter, "eplb_reports_dropped_total",
              "Load reports that were dropped, by place: queue = the core was behind, stream = the "
              "rank sent more than limits.messages_per_second, ahead = of steps far ahead of all "
              "other ranks of the job.");
  for (const auto& [place, count] : s.reports_dropped) {
    page.Sample(static_cast<double>(count), {{"where", place}});
  }
  page.Family(MetricType::Counter, "eplb_http_errors_total",
              "HTTP answers with a status of 400 or above, by code; 421 = a Host that "
              "http.allowed_hosts does not list, 431 = a head above 8 KiB.");
  for (const auto& [code, count] : s.http.answers) {
    page.Sample(static_cast<double>(count), {{"code", absl::StrCat(code)}});
  }
  page.Family(
      MetricType::Counter, "eplb_http_dropped_total",
      "HTTP connections closed without a whole answer, by reason: crowded = too many "
      "waited, late = the request's head did not end within 5 s, slow = the peer took no "
      "byte of its answer for 1 s, or not all of it within 10 s, or a watcher of /events took "
      "none for 30 s or left more than 1 MiB waiting.");
  page.Sample(static_cast<double>(s.http.drops.crowded), {{"reason", "crowded"}});
  page.Sample(static_cast<double>(s.http.drops.late), {{"reason", "late"}});
  page.Sample(static_cast<double>(s.http.drops.slow), {{"reason", "slow"}});
  page.Family(MetricType::Gauge, "eplb_http_watchers", "Connections of /events now.");
  page.Sample(static_cast<double>(s.http.watchers));
  page.Family(MetricType::Counter, "eplb_store_errors_total", "Writes that the store refused.");
  page.Sample(static_cast<double>(s.store_errors));
  page.Family(MetricType::Gauge, "eplb_tls_cert_expiry_timestamp_seconds",
              "When the daemon's certificate ends, seconds since 1970, read from tls.cert now.");
  if (s.tls_cert_expiry) page.Sample(absl::ToDoubleSeconds(*s.tls_cert_expiry - absl::UnixEpoch()));
}

void AddDurations(const MetricsSnapshot& s, Page& page) {
  page.Family(MetricType::Histogram, "eplb_solve_seconds",
              "Time of the policy for one placement, all layers.");
  page.Sample(s.solve_seconds);
  page.Family(MetricType::Histogram, "eplb_store_write_seconds",
              "Time of one durable write of the store.");
  page.Sample(s.store_write_seconds);
  page.Family(MetricType::Histogram, "eplb_prepare_seconds",
              "Time from a proposal to the last PREPARED.");
  page.Sample(s.counters.prepare_seconds);
  page.Family(
      MetricType::Histogram, "eplb_gate_wait_seconds",
      "Time that a prepared chunk waited for the ranks' vote: first Applied - last PREPARED - "
      "that rank's switch, at least 0.");
  page.Sample(s.counters.gate_wait_seconds);
  page.Family(
      MetricType::Histogram, "eplb_migration_stall_seconds",
      "Time that a rank's training thread spent on a chunk, from the vote to the commit, one "
      "per rank and chunk.");
  page.Sample(s.counters.pause_seconds);
  page.Family(MetricType::Histogram, "eplb_rpc_seconds",
              "Time from a call's start to its status, by method and code; an AllGather waits for "
              "its other ranks. Not in it: streams (eplb_session_disconnects_total) and calls "
              "above the size limit. other: "
              "health checks, and methods that do not exist.");
  for (const CallFigures& call : s.calls) {
    page.Sample(call.seconds, {{"method", call.method}, {"code", call.code}});
  }
}

// One family with a sample per job.
template <class Value>
void PerJob(const MetricsSnapshot& s, MetricType type, const char* name, const char* help,
            Value value, Page& page) {
  page.Family(type, name, help);
  for (const core::JobView& job : s.jobs) {
    page.Sample(static_cast<double>(value(job)), {{kJobLabel, job.job}});
  }
}

// One family with a sample per job that has a value.
template <class Value>
void PerJobWithValue(const MetricsSnapshot& s, const char* name, const char* help, Value value,
                     Page& page) {
  page.Family(MetricType::Gauge, name, help);
  for (const core::JobView& job : s.jobs) {
    const std::optional<double> known = value(job);
    if (known) page.Sample(*known, {{kJobLabel, job.job}});
  }
}

using core::AboveZero;

void AddLayers(const MetricsSnapshot& s, Page& page) {
  page.Family(MetricType::Gauge, "eplb_balancedness_ratio",
              "Measured: mean GPU load / max GPU load of a layer, 1 is best; of the window of "
              "eplb_balancedness_mean_ratio. Absent for a layer without tokens.");
  for (const core::JobView& job : s.jobs) {
    if (job.layer_balancedness.size() > kMaxLayerLabels) continue;
    for (size_t layer = 0; layer < job.layer_balancedness.size(); ++layer) {
      if (!job.layer_balancedness[layer]) continue;
      page.Sample(*job.layer_balancedness[layer],
                  {{kJobLabel, job.job}, {"layer", absl::StrCat(layer)}});
    }
  }
  page.Family(MetricType::Gauge, "eplb_balancedness_worst_ratio",
              "Smallest of a job's eplb_balancedness_ratio over all its layers.");
  for (const core::JobView& job : s.jobs) {
    std::optional<double> worst;
    for (const std::optional<double>& one : job.layer_balancedness) {
      if (one) worst = std::min(worst.value_or(*one), *one);
    }
    if (worst) page.Sample(*worst, {{kJobLabel, job.job}});
  }
}

// Of whole jobs, in their order, as long as all series of the next one have room.
void AddExperts(const MetricsSnapshot& s, Page& page) {
  if (!s.per_expert) return;
  page.Family(MetricType::Gauge, "eplb_expert_tokens",
              "Tokens that were routed to an expert in the newest complete window, by layer and "
              "expert. Of whole jobs, in the order of their names, as far as "
              "20000 series in all have room.");
  size_t room = kMaxExpertSeries;
  size_t left_out = 0;
  for (const ExpertTokens& job : s.expert_tokens) {
    const LoadMatrix& counts = job.window.load->counts();
    const auto size = static_cast<size_t>(counts.size());
    if (size > room) {
      left_out += size;
      continue;
    }
    room -= size;
    for (Eigen::Index layer = 0; layer < counts.rows(); ++layer) {
      for (Eigen::Index expert = 0; expert < counts.cols(); ++expert) {
        page.Sample(static_cast<double>(counts(layer, expert)), {{kJobLabel, job.job},
                                                                 {"layer", absl::StrCat(layer)},
                                                                 {"expert", absl::StrCat(expert)}});
      }
    }
  }
  page.Family(MetricType::Gauge, "eplb_expert_series_left_out",
              "Series of eplb_expert_tokens that found no room.");
  page.Sample(static_cast<double>(left_out));
}

// What was measured, what would have been, and what was predicted.
void AddBalancedness(const MetricsSnapshot& s, Page& page) {
  const auto gauge = [&](const char* name, const char* help, auto value) {
    PerJobWithValue(s, name, help, value, page);
  };
  gauge(
      "eplb_balancedness_mean_ratio",
      "Measured: mean over layers with load of (mean GPU load / max GPU load), 1 is best; of the "
      "newest complete window whose placements are known, each step under the placement that it "
      "ran under. Of a job that splits each batch exactly and reports it, max GPU load is that of "
      "each batch, summed over the batches. Absent before such a window, and while the newest "
      "window has no tokens.",
      [](const core::JobView& job) { return job.balancedness; });
  AddLayers(s, page);
  gauge("eplb_static_balancedness_ratio",
        "Counterfactual: eplb_balancedness_mean_ratio of the same window, had it run under the "
        "static placement in equal shares. Absent as eplb_without_eplb_balancedness_ratio.",
        [](const core::JobView& job) { return job.balancedness_static; });
  gauge("eplb_without_eplb_balancedness_ratio",
        "Counterfactual: eplb_balancedness_mean_ratio of the same window, had each expert one "
        "slot, in order. Absent when ranks that split batches do not report it.",
        [](const core::JobView& job) { return job.balancedness_without_eplb; });
  gauge("eplb_predicted_balancedness_ratio",
        "Predicted: mean over layers with load of (mean GPU load / max GPU load) of the first "
        "whole window under the newest plan that switched anything, from what earlier predictions "
        "of the job turned out to be.",
        [](const core::JobView& job) { return job.balancedness_predicted; });
  gauge("eplb_prediction_error_ratio",
        "The error that eplb_predicted_balancedness_ratio was given with: what is seen later lies "
        "within it, but for the rarest windows. Absent until a prediction was compared.",
        [](const core::JobView& job) { return job.prediction_error; });
  gauge("eplb_seen_balancedness_ratio",
        "Measured: what followed eplb_predicted_balancedness_ratio, on the first complete window "
        "all of whose steps ran under that plan's last placement. Absent before it.",
        [](const core::JobView& job) { return job.balancedness_seen; });
  gauge("eplb_saved_seconds",
        "Sum over the run's measured windows and over layers of (max GPU load without EPLB - max "
        "GPU load measured) * cost.token_ns, where without EPLB each expert has one slot, in "
        "order; below 0 when that would have been faster. Absent without cost.token_ns.",
        [](const core::JobView& job) { return job.saved_seconds; });
  gauge(
      "eplb_spent_seconds",
      "Sum over the run's committed chunks of the longest boundary of any rank. Absent before the "
      "first.",
      [](const core::JobView& job) { return job.spent_seconds; });
}

// At most as many as there are candidates, of each job whose policy chooses.
void AddCandidates(const MetricsSnapshot& s, Page& page) {
  page.Family(
      MetricType::Gauge, "eplb_candidate_net_seconds",
      "Back-test: what a candidate (policy/estimate/cadence; none: without any move) would "
      "have saved on the run's windows so far, less its migrations and replicas. Absent before "
      "a step was timed.");
  for (const core::JobView& job : s.jobs) {
    for (const core::TriedCandidate& one : job.candidates) {
      if (!one.net_seconds) continue;
      page.Sample(*one.net_seconds, {{kJobLabel, job.job}, {"candidate", one.name}});
    }
  }
  page.Family(MetricType::Gauge, "eplb_candidate_in_use",
              "1 of the candidate that the next decision goes by, else 0.");
  for (const core::JobView& job : s.jobs) {
    for (const core::TriedCandidate& one : job.candidates) {
      page.Sample(one.in_use ? 1 : 0, {{kJobLabel, job.job}, {"candidate", one.name}});
    }
  }
}

void AddPolicy(const MetricsSnapshot& s, Page& page) {
  AddCandidates(s, page);

  page.Family(
      MetricType::Gauge, "eplb_job_info",
      "Always 1; the labels name the policy that decides for the job, and its mode: apply, or "
      "observe.");
  for (const core::JobView& job : s.jobs) {
    page.Sample(1, {{kJobLabel, job.job},
                    {"policy", job.settings.policy_name},
                    {"mode", job.settings.observe ? "observe" : "apply"}});
  }
  PerJob(
      s, MetricType::Gauge, "eplb_observed_only",
      "1 when the policy of the job only reports what it would do (policy.mode = observe); else 0.",
      [](const core::JobView& job) { return job.settings.observe ? 1 : 0; }, page);
}

void AddPredictions(const MetricsSnapshot& s, Page& page) {
  page.Family(
      MetricType::Counter, "eplb_predictions_total",
      "Predictions of committed decisions that were compared with what followed, since the "
      "daemon started: within = the balancedness that was seen lay within the predicted one "
      "+- its error, above = better, below = worse.");
  for (const core::JobView& job : s.jobs) {
    const auto sample = [&](const char* result, int64_t count) {
      page.Sample(static_cast<double>(count), {{kJobLabel, job.job}, {"result", result}});
    };
    sample("within", job.prediction_counts.within);
    sample("above", job.prediction_counts.above);
    sample("below", job.prediction_counts.below);
  }
}

void AddJobs(const MetricsSnapshot& s, Page& page) {
  const auto gauge = [&](const char* name, const char* help, auto value) {
    PerJob(s, MetricType::Gauge, name, help, value, page);
  };
  gauge("eplb_job_ranks", "Ranks of the job's run.",
        [](const core::JobView& job) { return job.world_size; });
  gauge("eplb_job_connected_ranks", "Ranks of the run whose stream is open.",
        [](const core::JobView& job) { return job.connected_ranks; });
  gauge("eplb_led_elsewhere",
        "1 when the ranks of the job's run left for another daemon, which leads them; else 0.",
        [](const core::JobView& job) { return job.led_elsewhere ? 1 : 0; });
  gauge("eplb_job_step", "Highest optimizer step that a rank reported.",
        [](const core::JobView& job) { return job.step; });
  gauge("eplb_placement_version", "Version of the placement in force.",
        [](const core::JobView& job) { return job.version; });
  PerJobWithValue(
      s, "eplb_last_commit_step", "Optimizer step of the newest switch.",
      [](const core::JobView& job) {
        return AboveZero(static_cast<double>(job.last_switched_step));
      },
      page);
  AddBalancedness(s, page);
  AddPolicy(s, page);
  PerJob(
      s, MetricType::Counter, "eplb_commits_total",
      "Chunks that all ranks switched, since the daemon started.",
      [](const core::JobView& job) { return job.commits; }, page);
  AddPredictions(s, page);
  page.Family(MetricType::Gauge, "eplb_plan_state",
              "1 for the state that the job is in: RECOVERING, IDLE, SOLVING, PREPARING, VOTING, "
              "CANCELLING, QUARANTINE; FINISHED, FAILED or LOST once its run has ended.");
  for (const core::JobView& job : s.jobs)
    page.Sample(1, {{kJobLabel, job.job}, {"state", std::string(core::JobStateName(job.state))}});
  gauge("eplb_plan_state_seconds", "Time in that state.",
        [](const core::JobView& job) { return absl::ToDoubleSeconds(job.state_age); });
  gauge("eplb_stuck_plan_seconds",
        "Age of a state that is older than three times its deadline, LOST included; else 0.",
        [](const core::JobView& job) { return job.stuck_seconds; });
  gauge("eplb_paused",
        "1 if the job's proposals are paused, by an operator or after a loss in the store; "
        "otherwise 0.",
        [](const core::JobView& job) { return job.paused ? 1 : 0; });
  PerJobWithValue(
      s, "eplb_coverage_ratio",
      "Reporters of the newest complete window / reporters of the job. Absent before a window.",
      [](const core::JobView& job) { return job.coverage; }, page);
  gauge("eplb_quarantine",
        "1 when the job is in QUARANTINE: no proposals until an operator clears it.",
        [](const core::JobView& job) { return job.state == core::JobState::kQuarantine ? 1 : 0; });
}

// Whether steps are followed by windows and decisions.
void AddProgress(const MetricsSnapshot& s, Page& page) {
  page.Family(
      MetricType::Gauge, "eplb_stalled",
      "1 when the job trains and its balancing has stopped; else 0. The label names the reason: "
      "store, state, lost, hung, windows, decisions, withdrawn, candidate, refused; none.");
  for (const core::JobView& job : s.jobs) {
    page.Sample(job.stalled.empty() ? 0 : 1,
                {{kJobLabel, job.job}, {"reason", job.stalled.empty() ? "none" : job.stalled}});
  }
  PerJob(
      s, MetricType::Gauge, "eplb_not_counting",
      "1 when the job trains and some layer or some reporting rank has counted no token for two "
      "report intervals; else 0.",
      [](const core::JobView& job) { return job.not_counting_reason.empty() ? 0 : 1; }, page);
  PerJobWithValue(
      s, "eplb_coverage_now_ratio",
      "Reporters that sent the newest window that should be complete / reporters of the job. "
      "Absent before such a window.",
      [](const core::JobView& job) { return job.coverage_now; }, page);
  PerJobWithValue(
      s, "eplb_step_seconds", "Time of a step, from when steps were reported.",
      [](const core::JobView& job) { return job.step_seconds; }, page);
  PerJob(
      s, MetricType::Gauge, "eplb_slow_gpus",
      "GPUs of the EP group whose step times are above those that are expected for their tokens.",
      [](const core::JobView& job) {
        return std::count_if(job.gpu_speeds.begin(), job.gpu_speeds.end(),
                             [](const auto& one) { return one.measured_speed.has_value(); });
      },
      page);
  PerJobWithValue(
      s, "eplb_slowest_gpu_speed_ratio",
      "Measured speed of the slowest GPU / speed of the median GPU. Absent while no GPU is named "
      "slow.",
      [](const core::JobView& job) {
        std::optional<double> slowest;
        for (const auto& one : job.gpu_speeds) {
          if (one.measured_speed) slowest = std::min(slowest.value_or(1), *one.measured_speed);
        }
        return slowest;
      },
      page);
  PerJob(
      s, MetricType::Counter, "eplb_windows_given_up_total",
      "Load windows that too few ranks reported before newer ones took their place.",
      [](const core::JobView& job) { return job.windows_given_up; }, page);
  PerJob(
      s, MetricType::Gauge, "eplb_run_number",
      "Number of the run in force, rising within a job; 0 = none yet.",
      [](const core::JobView& job) { return job.run_number; }, page);
  PerJob(
      s, MetricType::Gauge, "eplb_candidate_ranks",
      "Registered ranks of a newer run that is not balanced yet; 0 when there is none.",
      [](const core::JobView& job) { return job.candidate ? job.candidate->registered : 0; }, page);
  PerJob(
      s, MetricType::Counter, "eplb_job_refusals_total",
      "Registrations of ranks that were refused, since the daemon started; also of the newest jobs "
      "that the daemon does not serve.",
      [](const core::JobView& job) { return job.refused_hellos; }, page);
  for (const core::RefusedJob& refused : s.refused_jobs) {
    page.Sample(static_cast<double>(refused.count), {{kJobLabel, refused.job}});
  }
}

void AddAnswers(const core::Counters& counters, Page& page) {
  page.Family(MetricType::Counter, "eplb_plans_total",
              "Decisions of the policy, by what became of them; proposed counts all that ever "
              "were, and each again under what it became.");
  for (size_t result = 0; result < counters.plans.size(); ++result) {
    page.Sample(
        static_cast<double>(counters.plans[result]),
        {{"result", std::string(core::PlanResultName(static_cast<core::PlanResult>(result)))}});
  }
  page.Family(MetricType::Counter, "eplb_votes_total",
              "Answers of ranks to proposals: prepared, applied = switched, nack = refused, "
              "failed = given up after PREPARED; the last two by code.");
  const auto answer = [&page](const char* result, const char* code, int64_t count) {
    page.Sample(static_cast<double>(count), {{"result", result}, {"code", code}});
  };
  answer("prepared", "ok", counters.prepared);
  answer("applied", "ok", counters.applied);
  constexpr const char* kNacks[] = {
      "",        "stale_term",        "stale_version", "wrong_base", "wrong_digest",
      "invalid", "staging_too_small", "busy"};
  static_assert(std::size(kNacks) == std::tuple_size_v<decltype(core::Counters::nacks)>);
  for (size_t code = 1; code < counters.nacks.size(); ++code) {
    answer("nack", kNacks[code], counters.nacks[code]);
  }
  constexpr const char* kFailed[] = {"", "cancelled", "transfer_failed", "superseded"};
  static_assert(std::size(kFailed) == std::tuple_size_v<decltype(core::Counters::failed)>);
  for (size_t code = 1; code < counters.failed.size(); ++code) {
    answer("failed", kFailed[code], counters.failed[code]);
  }
}

void AddCounters(const MetricsSnapshot& s, Page& page) {
  const core::Counters& counters = s.counters;
  AddAnswers(counters, page);
  const auto counter = [&page](const char* name, const char* help, int64_t value) {
    page.Family(MetricType::Counter, name, help);
    page.Sample(static_cast<double>(value));
  };
  counter("eplb_reports_total", "Load reports that the core took.", counters.reports);
  counter("eplb_report_bytes_total", "Bytes of their counts in memory, 8 a count.",
          8 * counters.report_cells);
  counter("eplb_report_dropped_steps_total", "Steps whose counts ranks dropped, as they reported.",
          counters.dropped_steps);
  counter("eplb_windows_total", "Load windows that enough ranks reported.", counters.windows);
  counter("eplb_windows_unmeasured_total",
          "Load windows without a measured balancedness: a placement that their steps ran under is "
          "not known, or they have no tokens.",
          counters.windows_unmeasured);
  counter("eplb_migration_bytes_total", "Bytes that ranks received from other ranks.",
          counters.received_bytes);
  counter("eplb_moves_total", "Transfers of committed chunks.", counters.transfers);
  counter("eplb_changes_total", "Changes by operators that were done.", counters.changes);
  counter("eplb_changes_refused_total", "Changes by operators that were refused.",
          counters.changes_refused);
  counter("eplb_stuck_total", "States that became older than three times their deadline.",
          counters.stuck);
  counter("eplb_store_behind_total",
          "Jobs whose ranks had seen later versions than the store that was read: it is older than "
          "what runs.",
          counters.stores_behind);
  counter("eplb_jobs_expired_total", "Jobs that were forgotten or made room for a new one.",
          counters.jobs_expired);
  page.Family(
      MetricType::Gauge, "eplb_core_longest_hold_seconds",
      "The most processor time for which the core's lock was held at a stretch, since the daemon "
      "began; readers wait that long at most.");
  page.Sample(s.longest_hold_seconds);
  page.Family(MetricType::Gauge, "eplb_window_bytes",
              "Bytes of load windows that are held, of all jobs.");
  page.Sample(static_cast<double>(s.window_bytes));
  page.Family(MetricType::Counter, "eplb_events_left_out_total",
              "Events that ranks caused faster than the audit log takes them.");
  page.Sample(static_cast<double>(s.counters.events_left_out));
  page.Family(MetricType::Gauge, "eplb_queued_events", "Events that wait for the core.");
  page.Sample(static_cast<double>(s.queued_events));
}

void AddProcess(const ProcessFigures& process, Page& page) {
  const auto gauge = [&page](const char* name, const char* help, double value) {
    page.Family(MetricType::Gauge, name, help);
    page.Sample(value);
  };
  page.Family(MetricType::Counter, "process_cpu_seconds_total", "User and system time.");
  page.Sample(process.cpu_seconds);
  gauge("process_resident_memory_bytes", "Memory in RAM.",
        static_cast<double>(process.resident_bytes));
  gauge("process_open_fds", "Open file descriptors.",
        static_cast<double>(process.open_descriptors));
  gauge("process_max_fds", "Most that may be open.", static_cast<double>(process.max_descriptors));
  gauge("process_threads", "Threads.", static_cast<double>(process.threads));
  gauge("process_start_time_seconds", "Seconds since 1970.", process.start_unix_seconds);
}

// Everything at once, at the scrape: no thread gathers anything between scrapes.
class SnapshotCollectable : public prometheus::Collectable {
 public:
  explicit SnapshotCollectable(const MetricsSnapshot& snapshot) : snapshot_(snapshot) {}
  std::vector<MetricFamily> Collect() const override {
    Page page;
    AddDaemon(snapshot_, page);
    AddDurations(snapshot_, page);
    AddJobs(snapshot_, page);
    AddProgress(snapshot_, page);
    AddExperts(snapshot_, page);
    AddCounters(snapshot_, page);
    AddProcess(snapshot_.process, page);
    return page.Take();
  }

 private:
  const MetricsSnapshot& snapshot_;
};

}  // namespace

std::string MetricsText(const MetricsSnapshot& snapshot) {
  return prometheus::TextSerializer().Serialize(SnapshotCollectable(snapshot).Collect());
}

}  // namespace eplb
