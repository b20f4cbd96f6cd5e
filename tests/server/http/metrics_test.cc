#include "server/http/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include <google/protobuf/text_format.h>

#include "eplb/v1/options.pb.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Makes a figure of a decision a metric, before the families are read from the descriptors.
[[maybe_unused]] const bool transfers_are_a_metric = [] {
  const auto& options = v1::Plan::descriptor()->FindFieldByName("transfers")->options();
  const_cast<google::protobuf::FieldOptions&>(options)
      .MutableExtension(v1::metric)
      ->set_name("eplb_transfers_of_a_test");
  return true;
}();

void Merge(const char* text, v1::JobStatus& job) {
  EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(text, &job));
}

// A daemon with one job about which little is known.
MetricsSnapshot TestSnapshot() {
  MetricsSnapshot snapshot;
  snapshot.version = "1.2.3";
  snapshot.jobs.emplace_back();
  Merge(R"(job: "train" state: JOB_STATE_PREPARING state_seconds: 3 stuck_seconds: 3 commits: 5
             balancedness: inf policy { name: "incremental" mode: "apply" })",
        snapshot.jobs[0]);
  return snapshot;
}

// A value in every field.
MetricsSnapshot FullSnapshot() {
  MetricsSnapshot s = TestSnapshot();
  s.ready = true;
  s.term = 3;
  s.sessions = 2;
  s.tls_cert_expiry = absl::FromUnixSeconds(1'900'000'000);
  s.refusals_by_kind = {{"denied", 4}};
  s.session_disconnects_by_reason = {{"lost", 1}};
  s.reports_dropped = {{"stream", 1}};
  s.http = {.answers = {{421, 2}, {431, 1}}, .drops = {.crowded = 3, .late = 4, .slow = 5}};
  s.refused_jobs.emplace_back();
  s.refused_jobs[0].set_job("j65");
  s.refused_jobs[0].set_count(8);
  core::Buckets seconds;
  seconds.Add(0.002);
  s.calls = {{"Query/GetJob", "NOT_FOUND", seconds}};
  core::Counters& counters = s.counters;
  counters.plans[v1::PLAN_RESULT_WITHDRAWN] = 2;
  counters.nacks[static_cast<size_t>(wire::NackCode::kBusy)] = 3;
  counters.failed[static_cast<size_t>(wire::FailedCode::kTransfer)] = 4;
  counters.report_cells = 10;
  counters.applied = 5;
  counters.prepare_seconds.Add(0.25);
  counters.prepare_seconds.Add(0.25);
  counters.gate_wait_seconds.Add(2);
  counters.pause_seconds.Add(0.01);
  Merge(R"(
    last_switched_step: 77 layer_balancedness: [ 0, 0.25, 0 ] balancedness: 0.5
    balancedness_static: 0.125 balancedness_without_eplb: 0.25
    balancedness_predicted: 0.875 balancedness_seen: 0.75 prediction_error: 0.0625
    saved_seconds: -2 spent_seconds: 1 coverage: 1 coverage_now: 0.75 step_seconds: 0.5
    stalled: "windows" not_counting_reason: "rank 1 has counted no token since step 0"
    world_size: 4 step: 77 led_elsewhere: true windows_given_up: 12 run_number: 4 refused_hellos: 9
    candidate { registered_ranks: 3 }
    gpu_speeds { gpu: 1 measured: 0.75 in_use: 1 } gpu_speeds { gpu: 2 in_use: 0.5 }
    prediction_counts { within: 3 above: 2 below: 1 } newest_plan { transfers: 120 }
  )",
        s.jobs[0]);
  return s;
}

// Dashboards and alerts are written against these.
TEST(MetricsTest, EveryFamilyHasItsNameItsLabelsAndItsValue) {
  const std::string text = MetricsText(FullSnapshot());
  // Samples of the daemon.
  for (const char* line : {"build_info{version=\"1.2.3\",grpc_version=\"\"} 1",
                           "ready 1",
                           "leader 1",
                           "standby 0",
                           "term 3",
                           "sessions 2",
                           "session_disconnects_total{reason=\"lost\"} 1",
                           "refusals_total{kind=\"denied\"} 4",
                           "reports_dropped_total{where=\"stream\"} 1",
                           "http_errors_total{code=\"421\"} 2",
                           "http_errors_total{code=\"431\"} 1",
                           "http_dropped_total{reason=\"crowded\"} 3",
                           "http_dropped_total{reason=\"late\"} 4",
                           "http_dropped_total{reason=\"slow\"} 5",
                           "tls_cert_expiry_timestamp_seconds 1900000000",
                           "reports_total 0",
                           "report_bytes_total 80",
                           "windows_unmeasured_total 0",
                           "migration_bytes_total 0",
                           "moves_total 0",
                           "store_behind_total 0",
                           "store_errors_total 0",
                           "store_write_seconds_count 0",
                           "solve_seconds_count 0",
                           "plans_total{result=\"withdrawn\"} 2",
                           "votes_total{result=\"nack\",code=\"busy\"} 3",
                           "votes_total{result=\"failed\",code=\"transfer_failed\"} 4",
                           "votes_total{result=\"applied\",code=\"ok\"} 5",
                           "prepare_seconds_count 2\neplb_prepare_seconds_sum 0.5",
                           "gate_wait_seconds_bucket{le=\"1\"} 0",
                           "gate_wait_seconds_bucket{le=\"5\"} 1",
                           "migration_stall_seconds_bucket{le=\"0.01\"} 1",
                           "rpc_seconds_count{method=\"Query/GetJob\",code=\"NOT_FOUND\"} 1",
                           "job_refusals_total{training_job=\"j65\"} 8"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("\neplb_", line, "\n")));
  }
  // A sample of the job.
  struct Sample {
    const char* name;
    const char* labels;
    const char* value;
  };
  for (const Sample& one : {Sample{"balancedness_ratio", ",layer=\"1\"", "0.25"},
                            {"balancedness_worst_ratio", "", "0.25"},
                            {"balancedness_mean_ratio", "", "0.5"},
                            {"static_balancedness_ratio", "", "0.125"},
                            {"without_eplb_balancedness_ratio", "", "0.25"},
                            {"predicted_balancedness_ratio", "", "0.875"},
                            {"seen_balancedness_ratio", "", "0.75"},
                            {"prediction_error_ratio", "", "0.0625"},
                            {"saved_seconds", "", "-2"},
                            {"spent_seconds", "", "1"},
                            {"predictions_total", ",result=\"within\"", "3"},
                            {"predictions_total", ",result=\"above\"", "2"},
                            {"predictions_total", ",result=\"below\"", "1"},
                            {"led_elsewhere", "", "1"},
                            {"job_ranks", "", "4"},
                            {"job_connected_ranks", "", "0"},
                            {"job_step", "", "77"},
                            {"paused", "", "0"},
                            {"job_info", ",policy=\"incremental\",mode=\"apply\"", "1"},
                            {"observed_only", "", "0"},
                            {"placement_version", "", "0"},
                            {"last_commit_step", "", "77"},
                            {"commits_total", "", "5"},
                            {"plan_state", ",state=\"PREPARING\"", "1"},
                            {"plan_state_seconds", "", "3"},
                            {"stuck_plan_seconds", "", "3"},
                            {"quarantine", "", "0"},
                            {"stalled", ",reason=\"windows\"", "1"},
                            {"not_counting", "", "1"},
                            {"coverage_ratio", "", "1"},
                            {"coverage_now_ratio", "", "0.75"},
                            {"step_seconds", "", "0.5"},
                            {"windows_given_up_total", "", "12"},
                            {"slow_gpus", "", "1"},
                            {"slowest_gpu_speed_ratio", "", "0.75"},
                            {"run_number", "", "4"},
                            {"candidate_ranks", "", "3"},
                            {"transfers_of_a_test", "", "120"},
                            {"job_refusals_total", "", "9"}}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("\neplb_", one.name, "{training_job=\"train\"",
                                             one.labels, "} ", one.value, "\n")));
    EXPECT_THAT(text, HasSubstr(absl::StrCat("# HELP eplb_", one.name, " "))) << one.name;
  }
  EXPECT_THAT(text, HasSubstr("# TYPE eplb_sessions gauge\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE eplb_commits_total counter\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE eplb_rpc_seconds histogram\n"));
  for (const char* formula : {"(mean GPU load / max GPU load)", "first Applied - last PREPARED"}) {
    EXPECT_THAT(text, HasSubstr(formula));
  }
}

TEST(MetricsTest, AJobWithoutADecisionHasNoFigureOfOne) {
  MetricsSnapshot snapshot = TestSnapshot();
  EXPECT_THAT(MetricsText(snapshot), Not(HasSubstr("eplb_transfers_of_a_test{")));
  (void)snapshot.jobs[0].mutable_newest_plan();
  EXPECT_THAT(MetricsText(snapshot),
              HasSubstr("eplb_transfers_of_a_test{training_job=\"train\"} 0"));
}

TEST(MetricsTest, AStateThatChangesChangesItsSample) {
  MetricsSnapshot snapshot = TestSnapshot();
  const std::string before = MetricsText(snapshot);
  snapshot.draining = true;
  snapshot.jobs[0].mutable_policy()->set_mode("observe");
  const std::string after = MetricsText(snapshot);
  for (const auto& [was, is] :
       {std::pair("leader 1", "leader 0"),
        {"observed_only{training_job=\"train\"} 0", "observed_only{training_job=\"train\"} 1"},
        {"mode=\"apply\"} 1", "mode=\"observe\"} 1"}}) {
    EXPECT_THAT(before, HasSubstr(was));
    EXPECT_THAT(after, HasSubstr(is));
  }
}

// Prometheus gives every sample the labels `job` and `instance` of the scrape.
TEST(MetricsTest, NoSampleHasALabelThatPrometheusGivesItself) {
  for (const char* label : {"job", "instance"}) {
    for (const char* before : {"{", ","}) {
      EXPECT_THAT(MetricsText(TestSnapshot()), Not(HasSubstr(absl::StrCat(before, label, "=\""))));
    }
  }
}

TEST(MetricsTest, ValuesAreFinite) {
  const std::string text = MetricsText(TestSnapshot());
  EXPECT_THAT(text, HasSubstr("eplb_balancedness_mean_ratio{training_job=\"train\"} 0\n"));
  EXPECT_THAT(text, Not(HasSubstr(" Inf\n")));
  EXPECT_THAT(text, Not(HasSubstr(" +Inf\n")));
  EXPECT_THAT(text, Not(HasSubstr(" NaN\n")));
}

TEST(MetricsTest, BucketsAreCumulativeAndEndAboveEverything) {
  MetricsSnapshot snapshot = TestSnapshot();
  for (const double seconds : {0.0001, 0.02, 1000.0, -1.0, std::nan("")}) {
    snapshot.store_write_seconds.Add(seconds);
  }
  const std::string text = MetricsText(snapshot);
  EXPECT_THAT(text, HasSubstr("eplb_store_write_seconds_bucket{le=\"0.0001\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("eplb_store_write_seconds_bucket{le=\"0.025\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("eplb_store_write_seconds_bucket{le=\"60\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("eplb_store_write_seconds_bucket{le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("eplb_store_write_seconds_count 3\n"));
}

TEST(MetricsTest, AFigureWithoutAValueIsAbsent) {
  MetricsSnapshot snapshot = TestSnapshot();
  snapshot.jobs[0].add_candidates()->set_name("balanced/last/1");
  const std::string text = MetricsText(snapshot);
  for (const char* name :
       {"last_commit_step", "static_balancedness_ratio", "without_eplb_balancedness_ratio",
        "predicted_balancedness_ratio", "prediction_error_ratio", "seen_balancedness_ratio",
        "saved_seconds{", "spent_seconds", "balancedness_worst_ratio", "coverage_ratio",
        "coverage_now_ratio", "step_seconds", "slowest_gpu_speed_ratio", "candidate_net_seconds",
        "rpc_seconds", "tls_cert_expiry_timestamp_seconds"}) {
    EXPECT_THAT(text, Not(HasSubstr(absl::StrCat("eplb_", name)))) << name;
  }
  for (const char* layer : {"layer=\"0\"", "layer=\"2\""}) {
    EXPECT_THAT(MetricsText(FullSnapshot()), Not(HasSubstr(layer))) << "it has no tokens";
  }
}

// Expert e of layer l got 10 * l + e tokens.
ExpertTokens TokensOf(const std::string& job, int32_t num_layers, int32_t num_experts) {
  LoadMatrix counts(num_layers, num_experts);
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    for (int32_t expert = 0; expert < num_experts; ++expert) {
      counts(layer, expert) = 10 * layer + expert;
    }
  }
  return {job, {.load = std::make_shared<const Load>(*Load::FromCounts(std::move(counts)))}};
}

TEST(MetricsTest, TokensOfExpertsAreThereOnlyWhenTheyAreAskedFor) {
  MetricsSnapshot snapshot = TestSnapshot();
  snapshot.expert_tokens = {TokensOf("train", 2, 3)};
  EXPECT_THAT(MetricsText(snapshot), Not(HasSubstr("eplb_expert")));
  snapshot.per_expert = true;
  const std::string text = MetricsText(snapshot);
  EXPECT_THAT(text, HasSubstr("# TYPE eplb_expert_tokens gauge\n"
                              "eplb_expert_tokens{training_job=\"train\",layer=\"0\",expert=\"0\"}"
                              " 0\n"));
  EXPECT_THAT(text, HasSubstr("{training_job=\"train\",layer=\"1\",expert=\"2\"} 12\n"));
  EXPECT_THAT(text, HasSubstr("\neplb_expert_series_left_out 0\n"));
}

TEST(MetricsTest, OnlyAsManySeriesOfExpertsAreThereAsHaveRoom) {
  MetricsSnapshot snapshot = TestSnapshot();
  snapshot.per_expert = true;
  snapshot.expert_tokens = {TokensOf("a", 61, 256), TokensOf("b", 61, 256), TokensOf("c", 2, 3)};
  const std::string text = MetricsText(snapshot);
  int64_t series = 0;
  for (size_t at = text.find("\neplb_expert_tokens{"); at != std::string::npos;
       at = text.find("\neplb_expert_tokens{", at + 1)) {
    ++series;
  }
  EXPECT_EQ(series, 61 * 256 + 2 * 3);
  EXPECT_LE(series, static_cast<int64_t>(kMaxExpertSeries));
  EXPECT_THAT(text, Not(HasSubstr("eplb_expert_tokens{training_job=\"b\"")));
  EXPECT_THAT(text, HasSubstr("{training_job=\"c\",layer=\"1\",expert=\"2\"} 12\n"));
  EXPECT_THAT(text, HasSubstr("\neplb_expert_series_left_out 15616\n"));
  EXPECT_THAT(text, HasSubstr(absl::StrCat(kMaxExpertSeries, " series in all"))) << "the help";
}

TEST(MetricsTest, AForgottenJobHasNoSeries) {
  MetricsSnapshot snapshot = TestSnapshot();
  snapshot.jobs[0].add_layer_balancedness(0.5);
  EXPECT_THAT(MetricsText(snapshot), HasSubstr("eplb_not_counting{training_job=\"train\"} 0\n"));
  EXPECT_THAT(MetricsText(snapshot), Not(HasSubstr("eplb_job_ranks{"))) << "no rank has registered";
  snapshot.jobs[0].set_world_size(4);
  EXPECT_THAT(MetricsText(snapshot), HasSubstr("eplb_job_ranks{training_job=\"train\"} 4\n"));
  snapshot.jobs.clear();
  EXPECT_THAT(MetricsText(snapshot), Not(HasSubstr("training_job=")));
}

TEST(MetricsTest, LayersAreLabelledOnlyWhenTheyAreFew) {
  MetricsSnapshot snapshot = TestSnapshot();
  snapshot.jobs[0].mutable_layer_balancedness()->Resize(kMaxLayerLabels + 1, 0.5);
  const std::string text = MetricsText(snapshot);
  EXPECT_THAT(text, Not(HasSubstr("layer=")));
  EXPECT_THAT(text, HasSubstr("eplb_balancedness_worst_ratio{training_job=\"train\"} 0.5\n"));
}

}  // namespace
}  // namespace eplb
