#include "tests/server/store/store_contract.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/digest.h"

namespace eplb {

Placement ReversedPlacement(int32_t num_layers) {
  const Topology topology =
      *Topology::Make({.num_layers = num_layers, .num_experts = 4, .num_slots = 6, .num_gpus = 2});
  IndexMatrix slots(num_layers, 6);
  IndexMatrix ranks(num_layers, 6);
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    slots.row(layer) << 3, 2, 1, 0, 3, 2;
    ranks.row(layer) << 1, 0, 0, 0, 0, 1;
  }
  return *Placement::FromSlotsAndRanks(topology, slots, ranks);
}

core::StoredJob JobOf(const std::string& name, int64_t version, int32_t num_layers) {
  return {.job = name,
          .version = version,
          .next_version = version + 7,
          .placement = ReversedPlacement(num_layers)};
}

v1::JobEvent EventOf(const std::string& job, int64_t version) {
  v1::JobEvent event;
  event.set_job(job);
  event.set_name("committed");
  event.set_version(static_cast<uint64_t>(version));
  event.set_reason(absl::StrCat("commit ", version, " \"quoted\" and \xc3\xa9"));
  return event;
}

TEST_P(StoreContractTest, ANewStoreIsEmpty) {
  EXPECT_EQ(*store_->ReadTerm(), 0);
  EXPECT_TRUE(store_->ReadJobs()->empty());
  EXPECT_TRUE(store_->ReadEvents("job", 10, 0)->empty());
}

TEST_P(StoreContractTest, TermNeverFalls) {
  ASSERT_TRUE(store_->WriteTerm(5).ok());
  ASSERT_TRUE(store_->WriteTerm(3).ok());
  EXPECT_EQ(*store_->ReadTerm(), 5);
}

TEST_P(StoreContractTest, JobComesBackAsWritten) {
  ASSERT_TRUE(store_->WriteJob(JobOf("b", int64_t{1} << 62)).ok());
  ASSERT_TRUE(store_->WriteJob(JobOf("a", 2)).ok());
  const std::vector<core::StoredJob> jobs = *store_->ReadJobs();
  ASSERT_EQ(jobs.size(), 2);
  EXPECT_EQ(jobs[0].job, "a");
  EXPECT_EQ(jobs[1].version, int64_t{1} << 62);
  EXPECT_EQ(jobs[1].next_version, (int64_t{1} << 62) + 7);
  EXPECT_EQ(DigestOf(jobs[1].placement.value()), DigestOf(ReversedPlacement(2)));
}

TEST_P(StoreContractTest, SecondWriteReplacesTheJob) {
  ASSERT_TRUE(store_->WriteJob(JobOf("a", 2)).ok());
  ASSERT_TRUE(store_->WriteJob(JobOf("a", 3, 4)).ok());
  const std::vector<core::StoredJob> jobs = *store_->ReadJobs();
  ASSERT_EQ(jobs.size(), 1);
  EXPECT_EQ(jobs[0].version, 3);
  EXPECT_EQ(jobs[0].placement->topology().num_layers(), 4);
}

TEST_P(StoreContractTest, EventsComeNewestFirstWithTimeAndText) {
  const absl::Time time = absl::FromUnixMicros(1'700'000'000'123'456);
  ASSERT_TRUE(store_->AppendEvent(time, EventOf("a", 1)).ok());
  ASSERT_TRUE(store_->AppendEvent(time + absl::Seconds(1), EventOf("b", 2)).ok());
  ASSERT_TRUE(store_->AppendEvent(time + absl::Seconds(2), EventOf("a", 3)).ok());
  const std::vector<v1::JobEvent> events = *store_->ReadEvents("a", 10, 0);
  ASSERT_EQ(events.size(), 2);
  EXPECT_EQ(events[0].version(), 3);
  EXPECT_EQ(events[1].unix_micros(), absl::ToUnixMicros(time));
  EXPECT_EQ(events[1].reason(), EventOf("a", 1).reason());
  EXPECT_EQ(events[1].name(), "committed");
  EXPECT_GT(events[0].sequence(), events[1].sequence());
}

TEST_P(StoreContractTest, OnlyTheNewestEventsOfEachJobAreKept) {
  for (int64_t version = 1; version <= kContractMaxEvents + 3; ++version) {
    ASSERT_TRUE(store_->AppendEvent(absl::UnixEpoch(), EventOf("a", version)).ok());
  }
  ASSERT_TRUE(store_->AppendEvent(absl::UnixEpoch(), EventOf("b", 1)).ok());
  const std::vector<v1::JobEvent> events = *store_->ReadEvents("a", 100, 0);
  ASSERT_EQ(events.size(), kContractMaxEvents);
  EXPECT_EQ(events.front().version(), kContractMaxEvents + 3);
  EXPECT_EQ(events.back().version(), 4);
  EXPECT_EQ(store_->ReadEvents("b", 100, 0)->size(), 1);
}

TEST_P(StoreContractTest, LimitBoundsTheAnswer) {
  for (int64_t version = 1; version <= 3; ++version) {
    ASSERT_TRUE(store_->AppendEvent(absl::UnixEpoch(), EventOf("a", version)).ok());
  }
  EXPECT_EQ(store_->ReadEvents("a", 2, 0)->size(), 2);
  EXPECT_TRUE(store_->ReadEvents("a", 0, 0)->empty());
  EXPECT_TRUE(store_->ReadEvents("a", -1, 0)->empty());
}

TEST_P(StoreContractTest, WritersAndReadersMayBeThreads) {
  constexpr int64_t kWrites = 20;
  std::thread writer([this] {
    for (int64_t i = 1; i <= kWrites; ++i) {
      EXPECT_TRUE(store_->AppendEvent(absl::UnixEpoch(), EventOf("a", i)).ok());
    }
  });
  for (int64_t i = 1; i <= kWrites; ++i) {
    EXPECT_TRUE(store_->WriteJob(JobOf("a", i)).ok());
    EXPECT_TRUE(store_->ReadEvents("a", 10, 0).ok());
  }
  writer.join();
  EXPECT_EQ(store_->ReadEvents("a", 10, 0)->front().version(), kWrites);
  EXPECT_EQ(store_->ReadJobs()->front().version, kWrites);
}

TEST_P(StoreContractTest, EventsCarryWhoAskedAndWhatChangedAndCanBeReadOnFromAPoint) {
  v1::JobEvent event = EventOf("a", 1);
  event.set_actor("ann");
  event.set_before("x=1");
  event.set_after("x=2");
  ASSERT_TRUE(store_->AppendEvent(absl::UnixEpoch(), event).ok());
  const auto first = static_cast<int64_t>(store_->ReadEvents("a", 1, 0)->front().sequence());
  ASSERT_TRUE(store_->AppendEvent(absl::UnixEpoch(), EventOf("a", 2)).ok());
  const std::vector<v1::JobEvent> all = *store_->ReadEvents("a", 9, 0);
  EXPECT_EQ(all.back().actor(), "ann");
  EXPECT_EQ(all.back().before(), "x=1");
  EXPECT_EQ(all.back().after(), "x=2");
  const std::vector<v1::JobEvent> later = *store_->ReadEvents("a", 9, first);
  ASSERT_EQ(later.size(), 1);
  EXPECT_EQ(later[0].version(), 2);
  // Reading on in small steps misses nothing.
  ASSERT_TRUE(store_->AppendEvent(absl::UnixEpoch(), EventOf("a", 3)).ok());
  EXPECT_EQ(store_->ReadEvents("a", 1, first)->front().version(), 2);
  EXPECT_EQ(store_->ReadEvents("a", 1, 0)->front().version(), 3);
}

v1::Plan PlanOf(int64_t number) {
  auto plan = MessageOf<v1::Plan>(R"(
    unix_micros: 1700000000123456 policy: "balanced" result: PLAN_RESULT_PARTIAL base_version: 3
    first_version: 4 last_version: 5 decided_first_step: 10 decided_last_step: 19
    balancedness_before: 0.25 balancedness_in_force: 0.125 balancedness_predicted: 0.333
    prediction_error: 0.03 prediction_evidence: 5 split: "batch" seen_first_step: 20
    seen_last_step: 29 peak_fall: -0.5 net_gain_seconds: 2 migration_seconds: 1e-9 transfers: 6
    num_chunks: 3 chunks_committed: 2 solve_seconds: 0.5 prepare_seconds: 0.75
    pause_seconds: 0.125 switched_step: 24 reason: "because" asked_by: "ann"
    candidates { name: "none" windows: 12 balancedness: 0.75 net_seconds: -1.5 realized: 0.5 }
    scenarios { load: "steps 10..19" weight: 2 balancedness { mean: 0.75 min: 0.5 } }
    objective { name: "mean" mean: 1.25 mixtures_at_least: 0.625 }
    times {
      window_complete_unix_micros: 1700000000000001
      chunks { version: 4 proposed_unix_micros: 1700000000123456 ranks { rank: 2 } }
    })");
  plan.set_plan(static_cast<uint64_t>(number));
  if (number % 2 == 0) plan.set_balancedness_seen(2.0 / 3);
  plan.set_received_bytes(uint64_t{1} << 50);
  return plan;
}

TEST_P(StoreContractTest, TypicalLoadsComeBackAsWrittenUntilTheJobIsForgotten) {
  const auto typical = [](int64_t first, double num_windows) {
    LoadMatrix counts = LoadMatrix::Constant(40, 16, 3);
    counts(0, 0) = first;
    return TypicalLoad{.load = std::make_shared<const Load>(Load::FromCounts(counts).value()),
                       .num_steps = 12.5,
                       .num_windows = num_windows,
                       .age = 3};
  };
  const auto read = [this] { return store_->ReadJobs()->front().typical_loads; };
  const std::vector<TypicalLoad> one = {typical(1 << 20, 1)};
  ASSERT_TRUE(store_->WriteTypicalLoads("a", one).ok());
  EXPECT_TRUE(store_->ReadJobs()->empty()) << "of no job";
  ASSERT_TRUE(store_->WriteJob(JobOf("a", 2)).ok());
  EXPECT_TRUE(read().empty());
  ASSERT_TRUE(store_->WriteTypicalLoads("a", one).ok());
  const std::vector<TypicalLoad> two = {typical(7, 0.25), typical(9, 70)};
  ASSERT_TRUE(store_->WriteTypicalLoads("a", two).ok());
  ASSERT_EQ(read().size(), 2u);
  EXPECT_EQ(read()[1].num_windows, 70);
  EXPECT_EQ(read()[1].num_steps, 12.5);
  EXPECT_TRUE((read()[1].load->ToDouble() == two[1].load->ToDouble()).all());
  EXPECT_EQ(read()[1].age, 3);
  ASSERT_TRUE(store_->ForgetJob("a").ok());
  ASSERT_TRUE(store_->WriteJob(JobOf("a", 2)).ok());
  EXPECT_TRUE(read().empty());
}

TEST_P(StoreContractTest, MemoryAndEndComeBackAsWritten) {
  core::StoredJob job = JobOf("a", 4);
  job.memory = {.term = 3,
                .serial = 12,
                .run_number = 2,
                .run_id = "run-2",
                .gone = {{.run_id = "run-1", .run_number = 1}},
                .paused = true,
                .pause_reason = "by ann",
                .settings = {{"name", "incremental"},
                             {"mode", "observe"},
                             {"every_steps", 7},
                             {"min_gain", 0.1},
                             {"horizon_steps", 9},
                             {"freeze_steps", ""},
                             {"max_pause", absl::Nanoseconds(123456789)},
                             {"layers_per_chunk", 2}},
                .quarantine = "two plans",
                .last_decision_step = 0,
                .back_off_length = 4,
                .back_off_to_skip = 3,
                .account_windows = 5,
                .account_saved_peak_tokens = 1e9,
                .account_pause_seconds = 0.1,
                .report_seconds = 3.25,
                .gap_seconds = 61.5,
                .next_version = 11};
  job.end = MessageOf<v1::RunEnd>(R"(
    ending: RUN_ENDING_FAILED reason: "rank 2 was lost" unix_micros: 1234567 run_id: "run-1"
    world_size: 8 step: 19 elsewhere: true)");
  ASSERT_TRUE(store_->WriteJob(job).ok());
  const core::StoredJob read = store_->ReadJobs()->front();
  EXPECT_EQ(read.memory, job.memory);
  EXPECT_EQ(read.end, job.end);
  ASSERT_TRUE(store_->WriteJob(JobOf("a", 4)).ok());
  EXPECT_EQ(store_->ReadJobs()->front().memory, wire::JobMemory());
  EXPECT_FALSE(store_->ReadJobs()->front().end.has_value());
}

TEST_P(StoreContractTest, ADoneChangeIsWrittenWithTheJobAndTheNewestAreKept) {
  for (int i = 0; i < kContractMaxRequests + 2; ++i) {
    core::StoredJob job = JobOf("a", 1);
    job.done = core::DoneRequest{absl::StrCat("id-", i), absl::StrCat("outcome ", i)};
    ASSERT_TRUE(store_->WriteJob(job).ok());
  }
  ASSERT_TRUE(store_->WriteJob(JobOf("b", 1)).ok());
  const std::vector<core::StoredJob> jobs = *store_->ReadJobs();
  ASSERT_EQ(jobs[0].requests.size(), kContractMaxRequests);
  EXPECT_EQ(jobs[0].requests.front(), (core::DoneRequest{"id-2", "outcome 2"}));
  EXPECT_FALSE(jobs[0].done.has_value());
  EXPECT_TRUE(jobs[1].requests.empty());
}

TEST_P(StoreContractTest, APlanIsReplacedByItsNumberAndTheNewestAreKept) {
  ASSERT_TRUE(store_->WriteJob(JobOf("a", 1)).ok());
  for (int64_t number = 1; number <= kContractMaxPlans + 1; ++number) {
    v1::Plan plan = PlanOf(number);
    plan.set_result(v1::PLAN_RESULT_PROPOSED);
    ASSERT_TRUE(store_->WritePlan("a", plan).ok());
    ASSERT_TRUE(store_->WritePlan("a", PlanOf(number)).ok());
  }
  const std::vector<v1::Plan> plans = store_->ReadJobs()->front().plans;
  ASSERT_EQ(plans.size(), kContractMaxPlans);
  EXPECT_EQ(plans.front(), PlanOf(2));
  EXPECT_EQ(plans.back(), PlanOf(kContractMaxPlans + 1));
}

StoredWindow WindowOf(const std::string& job, int64_t number) {
  StoredWindow window{.job = job, .figures = MessageOf<v1::Window>(R"(
    run_id: "run-1" versions: [3, 4] coverage: 0.75 step_seconds: 0.5 tokens: 1152921504606846976
    split: "batch" balancedness: 0.333 balancedness_equal: 0.25 balancedness_static: 0.125
    balancedness_without_eplb: 0.0625)")};
  window.figures.set_window(static_cast<uint64_t>(number));
  window.figures.set_completed_unix_micros(1'700'000'000'000'000 + number);
  window.figures.set_first_step(static_cast<uint64_t>(10 * number));
  window.figures.set_last_step(static_cast<uint64_t>(10 * number + 9));
  return window;
}

std::vector<int64_t> NumbersIn(Store& store) {
  std::vector<int64_t> numbers;
  for (const StoredWindow& window : *store.ReadWindows())
    numbers.push_back(static_cast<int64_t>(window.figures.window()));
  return numbers;
}

TEST_P(StoreContractTest, WindowsComeBackAsWrittenAndTheNewestAreKept) {
  for (const char* job : {"a", "b"}) ASSERT_TRUE(store_->WriteJob(JobOf(job, 1)).ok());
  const StoredWindow bare{.job = "b", .figures = MessageOf<v1::Window>("window: 2 last_step: 9")};
  ASSERT_TRUE(store_->WriteWindows(std::vector{WindowOf("a", 1), bare}).ok());
  if (!store_->KeepsWindows()) {
    EXPECT_TRUE(store_->ReadWindows()->empty());
    return;
  }
  EXPECT_EQ(*store_->ReadWindows(), (std::vector{WindowOf("a", 1), bare}));
  for (int64_t number = 3; number <= 5; ++number) {
    ASSERT_TRUE(store_->WriteWindows(std::vector{WindowOf("a", number)}).ok());
  }
  EXPECT_EQ(NumbersIn(*store_), (std::vector<int64_t>{2, 3, 4, 5})) << "three of job a";
  ASSERT_TRUE(store_->WriteWindows(std::vector{WindowOf("b", 6), WindowOf("b", 7)}).ok());
  EXPECT_EQ(NumbersIn(*store_), (std::vector<int64_t>{3, 4, 5, 6, 7})) << "five of all jobs";
}

TEST_P(StoreContractTest, AForgottenJobHasNoWindows) {
  if (!store_->KeepsWindows()) return;
  for (const char* job : {"a", "b"}) ASSERT_TRUE(store_->WriteJob(JobOf(job, 1)).ok());
  ASSERT_TRUE(store_->WriteWindows(std::vector{WindowOf("a", 1), WindowOf("b", 2)}).ok());
  ASSERT_TRUE(store_->ForgetJob("a").ok());
  ASSERT_TRUE(store_->WriteWindows(std::vector{WindowOf("a", 3)}).ok()) << "it was on its way";
  EXPECT_EQ(NumbersIn(*store_), std::vector<int64_t>{2});
}

TEST_P(StoreContractTest, OperatorsEventsAreNotPushedOutByOthers) {
  ASSERT_TRUE(store_->WriteJob(JobOf("a", 1)).ok());
  v1::JobEvent pause = EventOf("a", 7);
  pause.set_actor("ann");
  for (int i = 0; i < kContractMaxOperatorEvents + 1; ++i) {
    ASSERT_TRUE(store_->AppendEvent(absl::FromUnixSeconds(i), pause).ok());
  }
  v1::JobEvent report = EventOf("a", 8);
  for (int i = 0; i < 3 * kContractMaxEvents; ++i) {
    ASSERT_TRUE(store_->AppendEvent(absl::FromUnixSeconds(100 + i), report).ok());
  }
  ASSERT_TRUE(store_->AppendEvent(absl::FromUnixSeconds(200), pause).ok());
  const std::vector<v1::JobEvent> events = *store_->ReadEvents("a", 1000, 0);
  const auto of_ann = std::count_if(events.begin(), events.end(), [](const v1::JobEvent& stored) {
    return stored.actor() == "ann";
  });
  EXPECT_EQ(of_ann, kContractMaxOperatorEvents);
  EXPECT_EQ(std::ssize(events) - of_ann, kContractMaxEvents);
  ASSERT_TRUE(store_->ForgetJob("a").ok());
  EXPECT_EQ(std::ssize(*store_->ReadEvents("a", 1000, 0)),
            kContractMaxOperatorEvents + kContractMaxEvents);
}

TEST_P(StoreContractTest, ASecondPlacementOfAVersionReplacesNothing) {
  core::StoredJob job = JobOf("a", 3, 1);
  ASSERT_TRUE(store_->WriteJob(job).ok());
  const core::StoredJob other = JobOf("a", 3, 2);
  ASSERT_TRUE(store_->WriteJob(other).ok());
  EXPECT_EQ(*store_->ReadPlacement("a", 3), job.placement);
  const core::StoredJob read = store_->ReadJobs()->front();
  EXPECT_EQ(read.placement, other.placement) << "the job runs the one that was written last";
  EXPECT_EQ(read.history, (std::vector<core::RanVersion>{{3, DigestOf(*job.placement)},
                                                         {3, DigestOf(*other.placement)}}));
}

TEST_P(StoreContractTest, AJobWithoutAPlacementComesBackAndGetsOneLater) {
  core::StoredJob job{.job = "a", .next_version = 5, .memory = {.serial = 2, .paused = true}};
  job.done = core::DoneRequest{.request_id = "r1", .outcome = "paused"};
  ASSERT_TRUE(store_->WriteJob(job).ok());
  const core::StoredJob read = store_->ReadJobs()->front();
  EXPECT_FALSE(read.placement.has_value());
  EXPECT_TRUE(read.history.empty());
  EXPECT_EQ(read.next_version, 5);
  EXPECT_EQ(read.memory, job.memory);
  ASSERT_EQ(read.requests.size(), 1);
  EXPECT_TRUE(absl::IsNotFound(store_->ReadPlacement("a", 0).status()));
  ASSERT_TRUE(store_->WriteJob(JobOf("a", 6)).ok());
  EXPECT_EQ(store_->ReadJobs()->front().history.size(), 1);
  EXPECT_EQ(store_->ReadJobs()->front().placement, JobOf("a", 6).placement);
}

TEST_P(StoreContractTest, ThePlacementsOfTheNewestVersionsAreKept) {
  for (int64_t version = 1; version <= kContractMaxHistory + 1; ++version) {
    ASSERT_TRUE(store_->WriteJob(JobOf("a", version, static_cast<int32_t>(version))).ok());
  }
  EXPECT_EQ(store_->ReadPlacement("a", 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->ReadPlacement("x", 2).status().code(), absl::StatusCode::kNotFound);
  for (int64_t version = 2; version <= kContractMaxHistory + 1; ++version) {
    EXPECT_EQ(*store_->ReadPlacement("a", version),
              ReversedPlacement(static_cast<int32_t>(version)));
  }
}

TEST_P(StoreContractTest, ThePlacementInForceIsKeptAlsoWhenItsVersionIsLow) {
  for (int64_t version = 1; version <= kContractMaxHistory + 1; ++version) {
    ASSERT_TRUE(store_->WriteJob(JobOf("a", version)).ok());
  }
  // A new run starts from its own layout again.
  ASSERT_TRUE(store_->WriteJob(JobOf("a", 0, 3)).ok());
  EXPECT_EQ(store_->ReadJobs()->front().placement, ReversedPlacement(3));
  EXPECT_EQ(*store_->ReadPlacement("a", 0), ReversedPlacement(3));
}

// A job of the same name comes in another shape: its versions go on above all that were given out.
TEST_P(StoreContractTest, AnotherShapeReplacesThePlacementInForceAndTheHistoryIsKept) {
  ASSERT_TRUE(store_->WriteJob(JobOf("a", 5)).ok());
  const Placement wider = Placement::Static(
      Topology::Make({.num_layers = 3, .num_experts = 8, .num_slots = 8, .num_gpus = 4}).value());
  core::StoredJob next = JobOf("a", 9);
  next.next_version = 10;
  next.placement = wider;
  ASSERT_TRUE(store_->WriteJob(next).ok());
  const core::StoredJob read = store_->ReadJobs()->front();
  EXPECT_EQ(read.placement, wider);
  EXPECT_EQ(read.version, 9);
  EXPECT_EQ(read.next_version, 10);
  EXPECT_EQ(*store_->ReadPlacement("a", 5), JobOf("a", 5).placement);
}

TEST_P(StoreContractTest, AForgottenJobLeavesOnlyEventsAndThoseOfAllSuchJobsAreBounded) {
  for (const char* job : {"a", "b", "c"}) {
    ASSERT_TRUE(store_->WriteJob(JobOf(job, 1)).ok());
    ASSERT_TRUE(store_->WritePlan(job, PlanOf(1)).ok());
    for (int64_t i = 0; i < kContractMaxEvents; ++i) {
      ASSERT_TRUE(store_->AppendEvent(absl::UnixEpoch(), EventOf(job, i)).ok());
    }
  }
  ASSERT_TRUE(store_->ForgetJob("a").ok());
  EXPECT_EQ(store_->ReadJobs()->size(), 2);
  EXPECT_FALSE(store_->ReadPlacement("a", 1).ok());
  EXPECT_EQ(store_->ReadEvents("a", 99, 0)->size(), kContractMaxEvents);
  ASSERT_TRUE(store_->ForgetJob("b").ok());
  EXPECT_TRUE(store_->ReadEvents("a", 99, 0)->empty());
  EXPECT_EQ(store_->ReadEvents("b", 99, 0)->size(), kContractMaxEvents);
  EXPECT_EQ(store_->ReadEvents("c", 99, 0)->size(), kContractMaxEvents);
  ASSERT_TRUE(store_->WriteJob(JobOf("a", 1)).ok());
  EXPECT_TRUE(store_->ReadJobs()->front().plans.empty());
}

TEST_P(StoreContractTest, AClosedStoreRefusesEveryCall) {
  store_->Close();
  EXPECT_TRUE(absl::IsUnavailable(store_->ReadTerm().status()));
  EXPECT_TRUE(absl::IsUnavailable(store_->WriteTerm(1)));
  EXPECT_TRUE(absl::IsUnavailable(store_->ReadJobs().status()));
  EXPECT_TRUE(absl::IsUnavailable(store_->WriteJob(JobOf("a", 1))));
  EXPECT_TRUE(absl::IsUnavailable(store_->WritePlan("a", PlanOf(1))));
  EXPECT_TRUE(absl::IsUnavailable(store_->ForgetJob("a")));
  EXPECT_TRUE(absl::IsUnavailable(store_->ReadPlacement("a", 1).status()));
  EXPECT_TRUE(absl::IsUnavailable(store_->AppendEvent(absl::UnixEpoch(), EventOf("a", 1))));
  EXPECT_TRUE(absl::IsUnavailable(store_->ReadEvents("a", 1, 0).status()));
}

}  // namespace eplb
