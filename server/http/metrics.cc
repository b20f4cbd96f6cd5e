// The families of the page as tables, and the few that need a loop of their own.
#include "server/http/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <tuple>

#include "absl/strings/str_cat.h"

#include "proto/wire/message_json.h"

#include "eplb/v1/metrics.pb.h"
#include "eplb/v1/options.pb.h"

namespace eplb {

namespace {

// Not `job`, because Prometheus gives every sample that label of the scrape and would rename this
// one.
constexpr char kJobLabel[] = "training_job";

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

double FiniteSample(double value) { return std::isfinite(value) ? value : 0; }

// Builds families in the order of the page.
class Page {
 public:
  // Begins a family, to which the next samples belong.
  void Family(MetricType type, const std::string& name, const std::string& help) {
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
  // Returns the families that have samples.
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

constexpr MetricType kGauge = MetricType::Gauge;
constexpr MetricType kCounter = MetricType::Counter;

using Snapshot = MetricsSnapshot;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using v1::JobStatus;
using Value = std::optional<double>;  // a sample without a value is absent

template <class Count>
double Number(Count count) {
  return static_cast<double>(count);
}

// Returns the figures of the snapshot that are not of a job.
v1::DaemonFigures FiguresOf(const Snapshot& s) {
  const core::Counters& counters = s.counters;
  v1::DaemonFigures figures;
  figures.set_ready(s.ready);
  figures.set_leader(!s.draining && !s.standby);
  figures.set_standby(s.standby);
  figures.set_term(s.term);
  figures.set_sessions(s.sessions);
  figures.set_store_errors(s.store_errors);
  if (s.tls_cert_expiry) {
    figures.set_tls_cert_expiry(absl::ToDoubleSeconds(*s.tls_cert_expiry - absl::UnixEpoch()));
  }
  figures.set_reports(counters.reports);
  figures.set_report_bytes(8 * counters.report_cells);
  figures.set_dropped_steps(counters.dropped_steps);
  figures.set_windows(counters.windows);
  figures.set_windows_unmeasured(counters.windows_unmeasured);
  figures.set_migration_bytes(counters.received_bytes);
  figures.set_moves(counters.transfers);
  figures.set_changes(counters.changes);
  figures.set_changes_refused(counters.changes_refused);
  figures.set_stuck(counters.stuck);
  figures.set_store_behind(counters.stores_behind);
  figures.set_jobs_expired(counters.jobs_expired);
  figures.set_longest_hold_seconds(s.longest_hold_seconds);
  figures.set_window_bytes(s.window_bytes);
  figures.set_events_left_out(counters.events_left_out);
  figures.set_queued_events(s.queued_events);
  figures.set_cpu_seconds(s.process.cpu_seconds);
  figures.set_resident_bytes(s.process.resident_bytes);
  figures.set_open_descriptors(s.process.open_descriptors);
  figures.set_max_descriptors(s.process.max_descriptors);
  figures.set_threads(s.process.threads);
  figures.set_start_time_seconds(s.process.start_unix_seconds);
  return figures;
}

Value WorstLayer(const JobStatus& job) {
  Value worst;
  for (const double one : job.layer_balancedness()) {
    if (one > 0) worst = std::min(worst.value_or(one), one);
  }
  return worst;
}

int64_t SlowGpus(const JobStatus& job) {
  return std::ranges::count_if(job.gpu_speeds(),
                               [](const auto& one) { return one.has_measured(); });
}

Value SlowestGpu(const JobStatus& job) {
  Value slowest;
  for (const auto& one : job.gpu_speeds()) {
    if (one.has_measured()) slowest = std::min(slowest.value_or(1), one.measured());
  }
  return slowest;
}

// Figures of a job that no field of its status has, by their place on the page.
struct ComputedFamily {
  uint32_t place;
  const char* name;
  const char* help;
  Value (*value)(const JobStatus& job);
};

constexpr ComputedFamily kComputedFamilies[] = {
    {80, "eplb_balancedness_worst_ratio",
     "Smallest of a job's eplb_balancedness_ratio over all its layers.", &WorstLayer},
    {160, "eplb_observed_only",
     "1 when the policy of the job only reports what it would do (policy.mode = observe); "
     "otherwise 0.",
     [](const JobStatus& job) -> Value { return job.policy().mode() == "observe"; }},
    {220, "eplb_quarantine",
     "1 when the job is in QUARANTINE: no proposals until an operator clears it.",
     [](const JobStatus& job) -> Value { return job.state() == v1::JOB_STATE_QUARANTINE; }},
    {260, "eplb_slow_gpus",
     "GPUs of the EP group whose step times are above those that are expected for their tokens.",
     [](const JobStatus& job) -> Value { return Number(SlowGpus(job)); }},
    {270, "eplb_slowest_gpu_speed_ratio",
     "Measured speed of the slowest GPU / speed of the median GPU. Absent while no GPU is named "
     "slow.",
     &SlowestGpu},
};

// A family with one sample per message.
struct Family {
  uint32_t place;
  MetricType type;
  std::string name;
  std::string help;
  std::function<Value(const Message& message)> value;
};

Value ValueOf(const Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& values = *message.GetReflection();
  if (field.has_presence() && !values.HasField(message, &field)) return std::nullopt;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return values.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return Number(values.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return values.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return Number(values.GetUInt64(message, &field));
    case FieldDescriptor::CPPTYPE_STRING:
      return !values.GetString(message, &field).empty();
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return values.GetDouble(message, &field);
    default:
      return std::nullopt;  // no other type is a metric
  }
}

// Returns the fields of `type`, and of the messages inside it, that are metrics.
std::vector<Family> FieldFamilies(const google::protobuf::Descriptor& type) {
  std::vector<Family> families;
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const google::protobuf::FieldOptions& options = field.options();
    if (const v1::Metric& metric = options.GetExtension(v1::metric); !metric.name().empty()) {
      families.push_back({metric.place(), metric.counter() ? kCounter : kGauge, metric.name(),
                          metric.help().empty() ? options.GetExtension(v1::help) : metric.help(),
                          [&field](const Message& message) { return ValueOf(message, field); }});
    }
    if (field.message_type() == nullptr || field.is_repeated()) continue;
    for (Family& inner : FieldFamilies(*field.message_type())) {
      inner.value = [&field, value = std::move(inner.value)](const Message& message) -> Value {
        // A job without a decision has no figure of one; without a candidate it has 0 ranks of one.
        const bool is_plan = field.message_type() == v1::Plan::descriptor();
        if (is_plan && !message.GetReflection()->HasField(message, &field)) return std::nullopt;
        return value(message.GetReflection()->GetMessage(message, &field));
      };
      families.push_back(std::move(inner));
    }
  }
  return families;
}

const std::vector<Family>& JobFamilies() {
  static const std::vector<Family> families = [] {
    std::vector<Family> found = FieldFamilies(*JobStatus::descriptor());
    for (const ComputedFamily& one : kComputedFamilies) {
      found.push_back({one.place, kGauge, one.name, one.help, [&one](const Message& job) {
                         return one.value(static_cast<const JobStatus&>(job));
                       }});
    }
    std::ranges::sort(found, {}, &Family::place);
    return found;
  }();
  return families;
}

struct Histogram {
  const char* name;
  const char* help;
  const core::Buckets& (*value)(const Snapshot& snapshot);
};

constexpr Histogram kHistograms[] = {
    {"eplb_solve_seconds", "Time of the policy for one placement, all layers.",
     [](const Snapshot& s) -> const core::Buckets& { return s.solve_seconds; }},
    {"eplb_store_write_seconds", "Time of one durable write of the store.",
     [](const Snapshot& s) -> const core::Buckets& { return s.store_write_seconds; }},
    {"eplb_prepare_seconds", "Time from a proposal to the last PREPARED.",
     [](const Snapshot& s) -> const core::Buckets& { return s.counters.prepare_seconds; }},
    {"eplb_gate_wait_seconds",
     "Time that a prepared chunk waited for the ranks' vote: first Applied - last PREPARED - that "
     "rank's switch, at least 0.",
     [](const Snapshot& s) -> const core::Buckets& { return s.counters.gate_wait_seconds; }},
    {"eplb_migration_stall_seconds",
     "Time that a rank's training thread spent on a chunk, from the vote to the commit, one per "
     "rank and chunk.",
     [](const Snapshot& s) -> const core::Buckets& { return s.counters.pause_seconds; }},
};

// A counter of the daemon with one label.
struct LabelledCounter {
  const char* name;
  const char* help;
  const char* label;
  std::vector<LabelledCount> (*counts)(const Snapshot& snapshot);
};

std::vector<LabelledCount> ErrorsByCode(const Snapshot& s) {
  std::vector<LabelledCount> counts;
  for (const auto& [code, count] : s.http.answers) counts.emplace_back(absl::StrCat(code), count);
  return counts;
}

std::vector<LabelledCount> PlansByResult(const Snapshot& s) {
  std::vector<LabelledCount> counts;
  for (size_t i = 1; i < s.counters.plans.size(); ++i) {
    counts.emplace_back(wire::EnumText(static_cast<v1::PlanResult>(i)), s.counters.plans[i]);
  }
  return counts;
}

constexpr LabelledCounter kLabelledCounters[] = {
    {"eplb_session_disconnects_total", "Streams that ended, by reason.", "reason",
     [](const Snapshot& s) { return s.session_disconnects_by_reason; }},
    {"eplb_refusals_total",
     "Connections, streams and calls that were refused, by kind: unauthenticated, denied (role or "
     "job), limited, malformed, handshake (or no byte of one), unknown_message (skipped), crowded "
     "(more connections than the limit of open files has room for), rank (its Hello or a report of "
     "it).",
     "kind", [](const Snapshot& s) { return s.refusals_by_kind; }},
    {"eplb_reports_dropped_total",
     "Load reports that were dropped, by place: queue = the core was behind, stream = the rank "
     "sent more than limits.messages_per_second, ahead = of steps far ahead of all other ranks of "
     "the job.",
     "where", [](const Snapshot& s) { return s.reports_dropped; }},
    {"eplb_http_errors_total",
     "HTTP answers with a status of 400 or above, by code; 421 = a Host that http.allowed_hosts "
     "does not list, 431 = a head above 8 KiB.",
     "code", &ErrorsByCode},
    {"eplb_http_dropped_total",
     "HTTP connections closed without a whole answer, by reason: crowded = too many waited, late = "
     "the request's head did not end within 5 s, slow = the peer took no byte of its answer for 1 "
     "s, or not all of it within 10 s.",
     "reason",
     [](const Snapshot& s) -> std::vector<LabelledCount> {
       const HttpDrops& drops = s.http.drops;
       return {{"crowded", drops.crowded}, {"late", drops.late}, {"slow", drops.slow}};
     }},
    {"eplb_plans_total",
     "Decisions of the policy, by result; proposed counts all that ever were, and each again under "
     "its result.",
     "result", &PlansByResult},
};

void AddTables(const Snapshot& s, Page& page) {
  page.Family(kGauge, "eplb_build_info", "Always 1; the labels name the versions that run.");
  page.Sample(1, {{"version", s.version}, {"grpc_version", s.grpc_version}});
  const v1::DaemonFigures figures = FiguresOf(s);
  for (const Family& family : FieldFamilies(*figures.GetDescriptor())) {
    page.Family(family.type, family.name, family.help);
    if (const Value value = family.value(figures)) page.Sample(*value);
  }
  for (const LabelledCounter& family : kLabelledCounters) {
    page.Family(kCounter, family.name, family.help);
    for (const auto& [cell, count] : family.counts(s)) {
      page.Sample(Number(count), {{family.label, cell}});
    }
  }
  for (const Family& family : JobFamilies()) {
    page.Family(family.type, family.name, family.help);
    for (const JobStatus& job : s.jobs) {
      if (const Value value = family.value(job)) page.Sample(*value, {{kJobLabel, job.job()}});
    }
  }
  for (const Histogram& histogram : kHistograms) {
    page.Family(MetricType::Histogram, histogram.name, histogram.help);
    page.Sample(histogram.value(s));
  }
  page.Family(MetricType::Histogram, "eplb_rpc_seconds",
              "Time from a call's start to its status, by method and code; an AllGather waits for "
              "its other ranks. Without streams (eplb_session_disconnects_total) and calls above "
              "the size limit. other: health checks, and methods that do not exist.");
  for (const CallFigures& call : s.calls) {
    page.Sample(call.seconds, {{"method", call.method}, {"code", call.code}});
  }
}

void AddLayers(const Snapshot& s, Page& page) {
  page.Family(kGauge, "eplb_balancedness_ratio",
              "Measured: mean GPU load / max GPU load of a layer, 1 is best; of the window of "
              "eplb_balancedness_mean_ratio. Absent for a layer without tokens.");
  for (const JobStatus& job : s.jobs) {
    if (job.layer_balancedness_size() > kMaxLayerLabels) continue;
    for (int layer = 0; layer < job.layer_balancedness_size(); ++layer) {
      if (job.layer_balancedness(layer) == 0) continue;
      page.Sample(job.layer_balancedness(layer),
                  {{kJobLabel, job.job()}, {"layer", absl::StrCat(layer)}});
    }
  }
}

// Adds whole jobs in their order, as long as all series of the next one have room.
void AddExperts(const Snapshot& s, Page& page) {
  if (!s.per_expert) return;
  page.Family(
      kGauge, "eplb_expert_tokens",
      "Tokens that were routed to an expert in the newest complete window, by layer and expert. "
      "Whole jobs, in the order of their names, as far as 20000 series in all have room.");
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
  page.Family(kGauge, "eplb_expert_series_left_out",
              "Series of eplb_expert_tokens that found no room.");
  page.Sample(static_cast<double>(left_out));
}

// Families of jobs with labels of their own.
void AddLabelledByJob(const Snapshot& s, Page& page) {
  page.Family(kGauge, "eplb_job_info",
              "Always 1; the labels name the policy that decides for the job, and its mode: apply, "
              "or observe.");
  for (const JobStatus& job : s.jobs) {
    page.Sample(
        1,
        {{kJobLabel, job.job()}, {"policy", job.policy().name()}, {"mode", job.policy().mode()}});
  }
  page.Family(kGauge, "eplb_plan_state",
              "1 for the state that the job is in: RECOVERING, IDLE, SOLVING, PREPARING, VOTING, "
              "CANCELLING, QUARANTINE; FINISHED, FAILED or LOST once its run has ended.");
  for (const JobStatus& job : s.jobs) {
    page.Sample(1, {{kJobLabel, job.job()}, {"state", wire::EnumText(job.state())}});
  }
  page.Family(
      kGauge, "eplb_stalled",
      "1 when the job trains and its balancing has stopped; otherwise 0. The label names the "
      "reason: store, state, lost, hung, windows, decisions, withdrawn, candidate, refused; none.");
  for (const JobStatus& job : s.jobs) {
    page.Sample(
        job.stalled().empty() ? 0 : 1,
        {{kJobLabel, job.job()}, {"reason", job.stalled().empty() ? "none" : job.stalled()}});
  }
  page.Family(kCounter, "eplb_job_refusals_total",
              "Registrations of ranks that were refused, since the daemon started; also of the "
              "newest jobs that the daemon does not serve.");
  for (const JobStatus& job : s.jobs)
    page.Sample(Number(job.refused_hellos()), {{kJobLabel, job.job()}});
  for (const v1::Refusal& refused : s.refused_jobs) {
    page.Sample(Number(refused.count()), {{kJobLabel, refused.job()}});
  }
  page.Family(kCounter, "eplb_predictions_total",
              "Predictions of committed decisions that were compared with what followed, since the "
              "daemon started: within = the measured balancedness was within the predicted one +- "
              "its error, above = better, below = worse.");
  for (const JobStatus& job : s.jobs) {
    const auto& counts = job.prediction_counts();
    for (const auto& [result, count] : {std::pair("within", counts.within()),
                                        {"above", counts.above()},
                                        {"below", counts.below()}}) {
      page.Sample(Number(count), {{kJobLabel, job.job()}, {"result", result}});
    }
  }
}

// At most one sample per candidate, for each job whose policy chooses among candidates.
void AddCandidates(const Snapshot& s, Page& page) {
  page.Family(kGauge, "eplb_candidate_net_seconds",
              "Back-test: what a candidate (policy/estimate/cadence; none: without any move) would "
              "have saved on the run's windows so far, less its migrations and replicas. Absent "
              "before a step was timed.");
  for (const JobStatus& job : s.jobs) {
    for (const v1::TriedCandidate& one : job.candidates()) {
      if (!one.has_net_seconds()) continue;
      page.Sample(one.net_seconds(), {{kJobLabel, job.job()}, {"candidate", one.name()}});
    }
  }
  page.Family(kGauge, "eplb_candidate_in_use",
              "1 for the candidate that makes the next decision, otherwise 0.");
  for (const JobStatus& job : s.jobs) {
    for (const v1::TriedCandidate& one : job.candidates()) {
      page.Sample(one.in_use() ? 1 : 0, {{kJobLabel, job.job()}, {"candidate", one.name()}});
    }
  }
}

void AddVotes(const core::Counters& counters, Page& page) {
  page.Family(kCounter, "eplb_votes_total",
              "Answers of ranks to proposals: prepared, applied = switched, nack = refused, failed "
              "= given up after PREPARED; the last two by code.");
  const auto answer = [&page](const char* result, const char* code, int64_t count) {
    page.Sample(Number(count), {{"result", result}, {"code", code}});
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

// Makes the whole page at the scrape. No thread gathers anything between scrapes.
class SnapshotCollectable : public prometheus::Collectable {
 public:
  explicit SnapshotCollectable(const MetricsSnapshot& snapshot) : snapshot_(snapshot) {}
  std::vector<MetricFamily> Collect() const override {
    Page page;
    AddTables(snapshot_, page);
    AddLayers(snapshot_, page);
    AddLabelledByJob(snapshot_, page);
    AddCandidates(snapshot_, page);
    AddExperts(snapshot_, page);
    AddVotes(snapshot_.counters, page);
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
