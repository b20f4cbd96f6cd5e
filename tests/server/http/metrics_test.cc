#include "server/http/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

MetricsSnapshot TestSnapshot() {
  MetricsSnapshot snapshot;
  snapshot.version = "1.2.3";
  snapshot.refusals_by_kind = {{"denied", 4}};
  core::JobView job;
  job.job = "train";
  job.state = core::JobState::kPreparing;
  job.state_age = absl::Seconds(3);
  job.waiting_for = "rank 2";
  job.stuck_seconds = 3;
  job.commits = 5;
  job.balancedness = std::numeric_limits<double>::infinity();
  snapshot.jobs = {job};
  return snapshot;
}

TEST(MetricsTest, EveryFamilyHasHelpAndType) {
  const std::string text = MetricsText(TestSnapshot());
  EXPECT_THAT(text, HasSubstr("# TYPE eplb_sessions gauge\neplb_sessions 0\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE eplb_commits_total counter\n"
                              "eplb_commits_total{training_job=\"train\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("eplb_refusals_total{kind=\"denied\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("eplb_plan_state{training_job=\"train\",state=\"PREPARING\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("eplb_stuck_plan_seconds{training_job=\"train\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("(mean GPU load / max GPU load)")) << "the formula";
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

TEST(MetricsTest, WhatIsNotKnownIsNotShown) {
  const std::string text = MetricsText(TestSnapshot());
  for (const char* name : {"last_commit_step", "static_balancedness", "without_eplb_balancedness",
                           "predicted_balancedness", "seen_balancedness", "saved_seconds",
                           "balancedness_worst", "coverage", "step_seconds"}) {
    EXPECT_THAT(text, Not(HasSubstr(absl::StrCat("eplb_", name)))) << name;
  }
  EXPECT_THAT(text, Not(HasSubstr("eplb_tls_cert_expiry_timestamp_seconds")));
  MetricsSnapshot snapshot = TestSnapshot();
  snapshot.tls_cert_expiry = absl::FromUnixSeconds(1'900'000'000);
  core::JobView& job = snapshot.jobs.front();
  job.last_switched_step = 77;
  job.layer_balancedness = {std::nullopt, 0.25, std::nullopt};
  job.balancedness_static = 0.125;
  job.balancedness_without_eplb = 0.25;
  job.balancedness_seen = 0.75;
  job.saved_seconds = -2;
  const std::string more = MetricsText(snapshot);
  EXPECT_THAT(more, HasSubstr("eplb_last_commit_step{training_job=\"train\"} 77\n"));
  EXPECT_THAT(more, HasSubstr("eplb_tls_cert_expiry_timestamp_seconds 1900000000\n"));
  EXPECT_THAT(more,
              HasSubstr("eplb_balancedness_ratio{training_job=\"train\",layer=\"1\"} 0.25\n"));
  EXPECT_THAT(more, Not(HasSubstr("layer=\"0\""))) << "it has no tokens";
  EXPECT_THAT(more, HasSubstr("eplb_balancedness_worst_ratio{training_job=\"train\"} 0.25\n"));
  EXPECT_THAT(more, Not(HasSubstr("layer=\"2\""))) << "no tokens in that layer";
  EXPECT_THAT(more, HasSubstr("eplb_static_balancedness_ratio{training_job=\"train\"} 0.125\n"));
  EXPECT_THAT(more,
              HasSubstr("eplb_without_eplb_balancedness_ratio{training_job=\"train\"} 0.25\n"));
  EXPECT_THAT(more, HasSubstr("eplb_seen_balancedness_ratio{training_job=\"train\"} 0.75\n"));
  EXPECT_THAT(more, HasSubstr("eplb_saved_seconds{training_job=\"train\"} -2\n"));
}

TEST(MetricsTest, AJobsPolicyAndModeAreLabels) {
  MetricsSnapshot snapshot = TestSnapshot();
  snapshot.jobs.front().settings.policy_name = "incremental";
  const std::string applies = MetricsText(snapshot);
  EXPECT_THAT(applies, HasSubstr("eplb_job_info{training_job=\"train\",policy=\"incremental\",mode="
                                 "\"apply\"} 1\n"));
  EXPECT_THAT(applies, HasSubstr("eplb_observed_only{training_job=\"train\"} 0\n"));
  snapshot.jobs.front().settings.observe = true;
  const std::string observes = MetricsText(snapshot);
  EXPECT_THAT(observes, HasSubstr("mode=\"observe\"} 1\n"));
  EXPECT_THAT(observes, HasSubstr("eplb_observed_only{training_job=\"train\"} 1\n"));
}

TEST(MetricsTest, CountersOfTheCoreHaveTheirNames) {
  MetricsSnapshot snapshot = TestSnapshot();
  snapshot.counters.plans[static_cast<size_t>(core::PlanResult::kWithdrawn)] = 2;
  snapshot.counters.nacks[static_cast<size_t>(wire::NackCode::kBusy)] = 3;
  snapshot.counters.failed[static_cast<size_t>(wire::FailedCode::kTransfer)] = 4;
  snapshot.counters.report_cells = 10;
  snapshot.counters.applied = 5;
  snapshot.counters.prepare_seconds.Add(0.25);
  snapshot.counters.prepare_seconds.Add(0.25);
  snapshot.counters.gate_wait_seconds.Add(2);
  snapshot.counters.pause_seconds.Add(0.01);
  const std::string text = MetricsText(snapshot);
  EXPECT_THAT(text, HasSubstr("eplb_plans_total{result=\"withdrawn\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("eplb_votes_total{result=\"nack\",code=\"busy\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("eplb_votes_total{result=\"failed\",code=\"transfer_failed\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("eplb_report_bytes_total 80\n"));
  EXPECT_THAT(text, HasSubstr("eplb_votes_total{result=\"applied\",code=\"ok\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("eplb_prepare_seconds_count 2\neplb_prepare_seconds_sum 0.5\n"));
  EXPECT_THAT(text, HasSubstr("eplb_gate_wait_seconds_bucket{le=\"1\"} 0\n"
                              "eplb_gate_wait_seconds_bucket{le=\"5\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("first Applied - last PREPARED")) << "the formula";
  EXPECT_THAT(text, HasSubstr("eplb_migration_stall_seconds_bucket{le=\"0.01\"} 1\n"));
}

TEST(MetricsTest, ADaemonLeadsUntilItDrains) {
  MetricsSnapshot snapshot = TestSnapshot();
  EXPECT_THAT(MetricsText(snapshot), HasSubstr("# TYPE eplb_leader gauge\neplb_leader 1\n"));
  snapshot.draining = true;
  EXPECT_THAT(MetricsText(snapshot), HasSubstr("\neplb_leader 0\n"));
}

TEST(MetricsTest, CallsAreTimedByMethodAndCode) {
  MetricsSnapshot snapshot = TestSnapshot();
  EXPECT_THAT(MetricsText(snapshot), Not(HasSubstr("eplb_rpc_seconds"))) << "nobody has called";
  core::Buckets seconds;
  seconds.Add(0.002);
  snapshot.calls = {{"Query/GetJob", "NOT_FOUND", seconds}};
  const std::string text = MetricsText(snapshot);
  EXPECT_THAT(text, HasSubstr("# TYPE eplb_rpc_seconds histogram\n"));
  EXPECT_THAT(text,
              HasSubstr("eplb_rpc_seconds_count{method=\"Query/GetJob\",code=\"NOT_FOUND\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("{method=\"Query/GetJob\",code=\"NOT_FOUND\",le=\"0.0025\"} 1\n"));
}

// Dashboards and alerts are written against these.
TEST(MetricsTest, NoNameIsLost) {
  MetricsSnapshot snapshot = TestSnapshot();
  snapshot.tls_cert_expiry = absl::UnixEpoch();
  snapshot.session_disconnects_by_reason = {{"lost", 1}};
  snapshot.reports_dropped = {{"stream", 1}};
  snapshot.calls = {{"Query/GetJob", "OK", {}}};
  core::JobView& job = snapshot.jobs.front();
  job.last_switched_step = 77;
  job.balancedness = 0.5;
  job.coverage = 1;
  job.coverage_now = 1;
  job.layer_balancedness = {0.5};
  job.balancedness_static = 0.4;
  job.balancedness_without_eplb = 0.45;
  job.balancedness_predicted = 0.9;
  job.balancedness_seen = 0.8;
  job.saved_seconds = 1;
  job.spent_seconds = 1;
  job.coverage = 1;
  job.coverage_now = 1;
  const std::string text = MetricsText(snapshot);
  for (const char* name : {"build_info",
                           "leader",
                           "standby",
                           "term",
                           "sessions",
                           "session_disconnects_total",
                           "reports_total",
                           "report_bytes_total",
                           "reports_dropped_total",
                           "coverage_ratio",
                           "coverage_now_ratio",
                           "not_counting",
                           "stalled",
                           "windows_given_up_total",
                           "candidate_ranks",
                           "job_refusals_total",
                           "balancedness_ratio",
                           "balancedness_mean_ratio",
                           "balancedness_worst_ratio",
                           "static_balancedness_ratio",
                           "without_eplb_balancedness_ratio",
                           "predicted_balancedness_ratio",
                           "seen_balancedness_ratio",
                           "saved_seconds",
                           "spent_seconds",
                           "predictions_total",
                           "led_elsewhere",
                           "job_ranks",
                           "job_connected_ranks",
                           "ready",
                           "paused",
                           "job_info",
                           "observed_only",
                           "windows_unmeasured_total",
                           "placement_version",
                           "last_commit_step",
                           "job_step",
                           "plans_total",
                           "plan_state",
                           "plan_state_seconds",
                           "stuck_plan_seconds",
                           "solve_seconds",
                           "prepare_seconds",
                           "gate_wait_seconds",
                           "migration_bytes_total",
                           "migration_stall_seconds",
                           "moves_total",
                           "votes_total",
                           "quarantine",
                           "store_write_seconds",
                           "store_behind_total",
                           "store_errors_total",
                           "tls_cert_expiry_timestamp_seconds",
                           "rpc_seconds",
                           "http_watchers"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("# HELP eplb_", name, " "))) << name;
  }
}

TEST(MetricsTest, PredictionsAreCountedByWhatFollowed) {
  MetricsSnapshot snapshot = TestSnapshot();
  snapshot.jobs.front().prediction_counts = {.within = 3, .above = 2, .below = 1};
  const std::string text = MetricsText(snapshot);
  for (const char* line :
       {"result=\"within\"} 3\n", "result=\"above\"} 2\n", "result=\"below\"} 1\n"}) {
    EXPECT_THAT(text,
                HasSubstr(absl::StrCat("eplb_predictions_total{training_job=\"train\",", line)));
  }
}

TEST(MetricsTest, ARunThatAnotherDaemonLeadsIsMarked) {
  MetricsSnapshot snapshot = TestSnapshot();
  EXPECT_THAT(MetricsText(snapshot), HasSubstr("eplb_led_elsewhere{training_job=\"train\"} 0\n"));
  snapshot.jobs.front().led_elsewhere = true;
  EXPECT_THAT(MetricsText(snapshot), HasSubstr("eplb_led_elsewhere{training_job=\"train\"} 1\n"));
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

TEST(MetricsTest, AFigureWithoutASampleHasNoSeries) {
  MetricsSnapshot snapshot = TestSnapshot();
  snapshot.jobs.front().candidates = {{.name = "balanced/last/1"}};
  const std::string text = MetricsText(snapshot);
  for (const char* name : {"coverage_ratio", "coverage_now_ratio", "step_seconds", "spent_seconds",
                           "prediction_error_ratio", "predicted_balancedness_ratio",
                           "slowest_gpu_speed_ratio", "candidate_net_seconds"}) {
    EXPECT_THAT(text, Not(HasSubstr(absl::StrCat("eplb_", name, "{")))) << name;
  }
}

TEST(MetricsTest, AForgottenJobHasNoSeries) {
  MetricsSnapshot snapshot = TestSnapshot();
  snapshot.jobs.front().layer_balancedness = {0.5};
  EXPECT_THAT(MetricsText(snapshot), HasSubstr("eplb_not_counting{training_job=\"train\"} 0\n"));
  EXPECT_THAT(MetricsText(snapshot), HasSubstr("eplb_job_ranks{training_job=\"train\"} "));
  snapshot.jobs.clear();
  EXPECT_THAT(MetricsText(snapshot), Not(HasSubstr("training_job=")));
}

TEST(MetricsTest, WhatHttpRefusesIsCounted) {
  MetricsSnapshot snapshot = TestSnapshot();
  snapshot.http = {.answers = {{421, 2}, {431, 1}},
                   .drops = {.crowded = 3, .late = 4, .slow = 5},
                   .watchers = 6};
  const std::string text = MetricsText(snapshot);
  EXPECT_THAT(text, HasSubstr("eplb_http_errors_total{code=\"421\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("eplb_http_errors_total{code=\"431\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("eplb_http_dropped_total{reason=\"crowded\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("eplb_http_dropped_total{reason=\"late\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("eplb_http_dropped_total{reason=\"slow\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE eplb_http_watchers gauge\neplb_http_watchers 6\n"));
}

TEST(MetricsTest, LayersAreLabelledOnlyWhenTheyAreFew) {
  MetricsSnapshot snapshot = TestSnapshot();
  snapshot.jobs.front().layer_balancedness.assign(kMaxLayerLabels + 1, 0.5);
  const std::string text = MetricsText(snapshot);
  EXPECT_THAT(text, Not(HasSubstr("layer=")));
  EXPECT_THAT(text, HasSubstr("eplb_balancedness_worst_ratio{training_job=\"train\"} 0.5\n"));
}

TEST(MetricsTest, AJobThatIsNotCountingIsOne) {
  MetricsSnapshot snapshot = TestSnapshot();
  snapshot.jobs.front().not_counting_reason = "rank 1 has counted no token since step 0";
  EXPECT_THAT(MetricsText(snapshot), HasSubstr("eplb_not_counting{training_job=\"train\"} 1\n"));
}

TEST(MetricsTest, AStallACandidateAndRefusalsHaveTheJobsLabel) {
  MetricsSnapshot snapshot = TestSnapshot();
  EXPECT_THAT(MetricsText(snapshot),
              HasSubstr("eplb_stalled{training_job=\"train\",reason=\"none\"} 0\n"));
  core::JobView& job = snapshot.jobs.front();
  job.stalled = "windows";
  job.coverage_now = 0.75;
  job.step_seconds = 0.5;
  job.windows_given_up = 12;
  job.run_number = 4;
  job.candidate = core::RunView{.registered = 3};
  job.refused_hellos = 9;
  job.gpu_speeds = {{.gpu = 1, .measured_speed = 0.75}, {.gpu = 2, .speed_in_use = 0.5}};
  snapshot.refused_jobs = {{.job = "j65", .reason = "full", .count = 8}};
  const std::string text = MetricsText(snapshot);
  for (const char* line : {"eplb_stalled{training_job=\"train\",reason=\"windows\"} 1\n",
                           "eplb_coverage_now_ratio{training_job=\"train\"} 0.75\n",
                           "eplb_step_seconds{training_job=\"train\"} 0.5\n",
                           "eplb_windows_given_up_total{training_job=\"train\"} 12\n",
                           "eplb_slow_gpus{training_job=\"train\"} 1\n",
                           "eplb_slowest_gpu_speed_ratio{training_job=\"train\"} 0.75\n",
                           "eplb_run_number{training_job=\"train\"} 4\n",
                           "eplb_candidate_ranks{training_job=\"train\"} 3\n",
                           "eplb_job_refusals_total{training_job=\"train\"} 9\n",
                           "eplb_job_refusals_total{training_job=\"j65\"} 8\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

}  // namespace
}  // namespace eplb
