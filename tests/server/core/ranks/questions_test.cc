#include "server/core/ranks/questions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "server/core/decisions/question.h"
#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

using ::testing::HasSubstr;
using Outcome = absl::StatusOr<ChangeOutcome>;

// An engine that asks by itself, from the static placement on.
class Engine {
 public:
  explicit Engine(CoreHarness& daemon, std::string run = "run-1")
      : daemon_(daemon), run_(std::move(run)) {}

  PlanQuestion Question() {
    return {.ticket = ++ticket_,
            .job = kJob,
            .run_id = run_,
            .engine = "vLLM 0.33.0",
            .number = ++number_,
            .shape = TestShape(),
            .current = current,
            .load = TestReport(0, 0).counts};
  }
  // Asks; the solver answers nothing by itself.
  int64_t Ask() { return Ask(Question()); }
  int64_t Ask(const PlanQuestion& question) {
    daemon_.Handle(question);
    return question.ticket;
  }
  // Asks, and returns the answer with `solution` as the solver's.
  Outcome AskFor(const Placement& solution) {
    const int64_t ticket = Ask();
    EXPECT_FALSE(daemon_.replies().contains(ticket));
    EXPECT_TRUE(daemon_.AnswerSolve(solution));
    return daemon_.replies().at(ticket);
  }
  Outcome Settle(int64_t version, bool taken) {
    daemon_.Handle(PlanSettled{.ticket = ++ticket_,
                               .job = kJob,
                               .run_id = run_,
                               .version = version,
                               .taken = taken,
                               .reason = "rank 2 did not answer"});
    return daemon_.replies().at(ticket_);
  }
  Outcome AnswerTo(int64_t ticket) const { return daemon_.replies().at(ticket); }

  Placement current = Placement::Static(Topology::Make(TestShape()).value());

 private:
  CoreHarness& daemon_;
  std::string run_;
  static inline int64_t ticket_ = 1000;  // the daemon's tickets never repeat
  int64_t number_ = 0;
};

// Decides at every question.
Config EngineConfig(int32_t layers_per_chunk = 4) {
  Config config = TestConfig();
  config.settings.every_steps = 0;
  config.settings.layers_per_chunk = layers_per_chunk;
  return config;
}

struct EngineTest : testing::Test {
  CoreHarness daemon{EngineConfig()};
  Engine engine{daemon};
};

TEST_F(EngineTest, AnAnswerCarriesTheWholePlacementAndIsInForceOnceItIsTaken) {
  const Outcome answer = engine.AskFor(Exchanged({0, 1, 2, 3}));
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_NE(answer->placement, nullptr);
  EXPECT_EQ(*answer->placement, Exchanged({0, 1, 2, 3}));
  EXPECT_EQ(daemon.state(), "VOTING");
  EXPECT_THAT(daemon.View().waiting_for(), HasSubstr("the next question of vLLM 0.33.0"));
  ASSERT_TRUE(engine.Settle(answer->version, true).ok());
  const v1::JobStatus view = daemon.View();
  EXPECT_EQ(view.state(), v1::JOB_STATE_IDLE);
  EXPECT_EQ(view.version(), answer->version);
  EXPECT_EQ(view.engine(), "vLLM 0.33.0");
  EXPECT_EQ(daemon.LastReason("committed"), "version 1 was committed: vLLM 0.33.0 took it");
  EXPECT_EQ(view.step(), 1);
  EXPECT_FALSE(daemon.plans().rbegin()->second.has_pause_seconds());
}

TEST_F(EngineTest, TheNextQuestionTellsWhatBecameOfAnAnswer) {
  const Outcome taken = engine.AskFor(Exchanged({0}));
  engine.current = *taken->placement;
  const Outcome lost = engine.AskFor(Exchanged({0, 1}));
  EXPECT_EQ(daemon.View().version(), taken->version);
  EXPECT_EQ(*engine.AnswerTo(engine.Ask())->placement, *lost->placement);
  engine.current = Exchanged({2, 3});  // the engine loaded another one
  const int64_t ticket = engine.Ask();
  EXPECT_GT(daemon.View().version(), lost->version);
  EXPECT_THAT(daemon.LastReason("withdrawn"), HasSubstr("a placement from elsewhere"));
  EXPECT_EQ(daemon.core().PlacementInForce(kJob)->placement, engine.current);
  EXPECT_EQ(daemon.View().last_window_last_step(), 4);
  EXPECT_EQ(engine.AnswerTo(ticket)->placement, nullptr);
}

TEST_F(EngineTest, AnAnswerThatWasNotTakenIsWithdrawnWithTheReason) {
  const Outcome answer = engine.AskFor(Exchanged({0}));
  ASSERT_TRUE(engine.Settle(answer->version, false).ok());
  EXPECT_EQ(daemon.View().version(), 0);
  EXPECT_THAT(daemon.LastReason("withdrawn"), HasSubstr("rank 2 did not answer"));
  EXPECT_EQ(engine.Settle(answer->version, true).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(EngineTest, LayersBeyondTheLimitOfAnAnswerFollowInTheNextOne) {
  CoreHarness capped{EngineConfig(3)};
  Engine asker{capped};
  const Outcome first = asker.AskFor(Exchanged({0, 1, 2, 3}));
  EXPECT_EQ(*first->placement, Exchanged({0, 1, 2}));
  ASSERT_TRUE(asker.Settle(first->version, true).ok());
  asker.current = *first->placement;
  const Outcome second = asker.AnswerTo(asker.Ask());
  EXPECT_EQ(*second->placement, Exchanged({0, 1, 2, 3}));
}

TEST_F(EngineTest, AKeptPlacementIsAnAnswerWithTheReason) {
  const Outcome answer = engine.AskFor(engine.current);
  EXPECT_EQ(answer->placement, nullptr);
  EXPECT_THAT(answer->outcome, HasSubstr("kept"));
  PlanQuestion quiet = engine.Question();
  quiet.load.setZero();
  const Outcome idle = engine.AnswerTo(engine.Ask(quiet));
  EXPECT_EQ(idle->placement, nullptr);
  EXPECT_THAT(idle->outcome, HasSubstr("counted no tokens in steps 2..2"));
  ASSERT_TRUE(daemon.Ask(Pause{}).ok());
  const Outcome paused = engine.AnswerTo(engine.Ask());
  EXPECT_EQ(paused->placement, nullptr);
  EXPECT_THAT(paused->outcome, HasSubstr("is paused"));
}

TEST_F(EngineTest, WhatAnOperatorAsksForWaitsForTheNextQuestion) {
  (void)engine.AskFor(engine.current);
  ASSERT_TRUE(daemon.Ask(Rebalance{.force = true}).ok());
  ASSERT_TRUE(daemon.AnswerSolve(Exchanged({1})));
  EXPECT_EQ(daemon.state(), "VOTING");
  daemon.Advance(absl::Hours(1));
  EXPECT_EQ(daemon.state(), "VOTING");
  const Outcome answer = engine.AnswerTo(engine.Ask());
  ASSERT_NE(answer->placement, nullptr);
  EXPECT_EQ(*answer->placement, Exchanged({1}));
}

TEST_F(EngineTest, WhatIsCancelledBeforeAnAnswerCarriedItIsGone) {
  (void)engine.AskFor(engine.current);
  ASSERT_TRUE(daemon.Ask(Rebalance{.force = true}).ok());
  ASSERT_TRUE(daemon.AnswerSolve(Exchanged({1})));
  ASSERT_TRUE(daemon.Ask(Pause{}).ok());
  EXPECT_EQ(daemon.state(), "IDLE");
  EXPECT_EQ(engine.AnswerTo(engine.Ask())->placement, nullptr);
}

TEST_F(EngineTest, PolicyAutoTriesNothingThatMovesMostExperts) {
  Config config = EngineConfig();
  config.settings.policy = kAutoPolicyName;
  CoreHarness automatic{config};
  Engine asker{automatic};
  (void)asker.Ask();
  const auto& candidates = automatic.pending_solve()->question->planner.options.candidates;
  EXPECT_GT(candidates.size(), 5U);
  for (const Candidate& candidate : candidates) EXPECT_EQ(candidate.policy, "incremental");
}

TEST_F(EngineTest, AnAnswerThatIsNeverTakenIsWithdrawnAfterThreeQuestions) {
  (void)engine.AskFor(Exchanged({0}));
  EXPECT_NE(engine.AnswerTo(engine.Ask())->placement, nullptr);
  EXPECT_NE(engine.AnswerTo(engine.Ask())->placement, nullptr);
  EXPECT_EQ(engine.AnswerTo(engine.Ask())->placement, nullptr);
  EXPECT_THAT(daemon.LastReason("withdrawn"),
              HasSubstr("the engine still runs version 0 after 3 answers"));
}

TEST_F(EngineTest, ALaterQuestionTakesThePlaceOfOneThatWaits) {
  const int64_t first = engine.Ask();
  const int64_t second = engine.Ask();
  EXPECT_EQ(engine.AnswerTo(first).status().code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(daemon.AnswerSolve(Exchanged({0})));
  EXPECT_NE(engine.AnswerTo(second)->placement, nullptr);
}

TEST_F(EngineTest, AJobThatTrainsIsNoEngines) {
  TestJob job(EngineConfig());
  job.ConnectAll();
  Engine intruder(job.daemon);
  const Outcome refused = intruder.AnswerTo(intruder.Ask());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr("job train trains, in run"));
  EXPECT_EQ(job.daemon.View().connected_ranks(), 3);
}

TEST_F(EngineTest, ATrainerThatTakesTheJobOverEndsTheQuestionThatWaits) {
  const int64_t ticket = engine.Ask();
  for (int32_t rank = 0; rank < 3; ++rank) {
    wire::Hello hello = TestHello(rank);
    hello.run_id = "trainer";
    hello.take_over = true;
    (void)daemon.Join(hello);
  }
  EXPECT_EQ(engine.AnswerTo(ticket).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(daemon.View().engine(), "");
}

TEST_F(EngineTest, AnOperatorForgetsAnEnginesJobWhichMayComeBack) {
  (void)engine.AskFor(Exchanged({0}));
  ASSERT_TRUE(daemon.Ask(ForgetJob{}).ok());
  EXPECT_FALSE(daemon.core().Job(kJob, daemon.now()).ok());
  EXPECT_TRUE(engine.AskFor(engine.current).ok());
}

TEST_F(EngineTest, AMalformedQuestionIsRefusedAndTheNextOneIsNot) {
  PlanQuestion wrong = engine.Question();
  wrong.number = 0;
  EXPECT_EQ(engine.AnswerTo(engine.Ask(wrong)).status().code(), absl::StatusCode::kInvalidArgument);
  wrong = engine.Question();
  wrong.job = "no job";
  EXPECT_THAT(engine.AnswerTo(engine.Ask(wrong)).status().message(), HasSubstr("hello: job"));
  wrong = engine.Question();
  wrong.load(0, 0) = -1;
  EXPECT_THAT(engine.AnswerTo(engine.Ask(wrong)).status().message(),
              HasSubstr("question: load is -1, it must be in 0..1099511627776"));
  wrong = engine.Question();
  wrong.shape.num_gpus = 1 << 20;
  EXPECT_THAT(engine.AnswerTo(engine.Ask(wrong)).status().message(),
              HasSubstr("question: shape: num_gpus is 1048576, it must be in 1..16384"));
  EXPECT_FALSE(daemon.core().Job(kJob, daemon.now()).ok());
  EXPECT_TRUE(engine.AskFor(Exchanged({0})).ok());
  wrong = engine.Question();
  wrong.number = 2;
  EXPECT_THAT(engine.AnswerTo(engine.Ask(wrong)).status().message(),
              HasSubstr("question: number is 2, it follows question"));
}

TEST_F(EngineTest, ARestartedDaemonGoesOnWithTheEnginesPlacement) {
  const Outcome answer = engine.AskFor(Exchanged({0}));
  ASSERT_TRUE(engine.Settle(answer->version, true).ok());
  daemon.Restart();
  engine.current = *answer->placement;
  (void)engine.AskFor(engine.current);
  EXPECT_EQ(daemon.View().version(), answer->version);
  EXPECT_EQ(daemon.View().run_number(), 1);
  daemon.LoseStore();
  (void)engine.AskFor(engine.current);
  EXPECT_EQ(daemon.core().PlacementInForce(kJob)->placement, engine.current);
}

TEST_F(EngineTest, AnAnswerThatCannotBeStoredIsRefused) {
  (void)engine.AskFor(engine.current);
  const int64_t ticket = engine.Ask();
  daemon.store_works = false;
  ASSERT_TRUE(daemon.AnswerSolve(Exchanged({0})));
  EXPECT_EQ(engine.AnswerTo(ticket).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(daemon.View().version(), 0);
}

TEST_F(EngineTest, AReportThatCannotBeStoredIsRefused) {
  const Outcome answer = engine.AskFor(Exchanged({0}));
  daemon.store_works = false;
  EXPECT_EQ(engine.Settle(answer->version, true).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(EngineTest, ARestartedEngineTakesTheJobOverAndTheOneBeforeIsRefused) {
  for (int i = 0; i < 4; ++i) {
    (void)engine.AskFor(engine.current);
    daemon.Advance(absl::Seconds(1));
  }
  Engine second(daemon, "run-2");
  EXPECT_TRUE(second.AskFor(second.current).ok());
  EXPECT_EQ(daemon.View().run_id(), "run-2");
  EXPECT_EQ(daemon.View().took_over(), "run-1");
  const Outcome refused = engine.AnswerTo(engine.Ask());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr("run run-1 of job train has ended"));
  EXPECT_TRUE(second.AskFor(second.current).ok());
}

TEST_F(EngineTest, AnEngineWhoseQuestionsStopIsStalledAfterSeveralIntervals) {
  for (int i = 0; i < 4; ++i) {
    (void)engine.AskFor(engine.current);
    daemon.Advance(absl::Minutes(1));
  }
  daemon.AdvanceSeconds(300);
  EXPECT_EQ(daemon.View().stalled(), "");
  daemon.AdvanceSeconds(300);
  EXPECT_EQ(daemon.View().stalled(), "hung");
  EXPECT_THAT(daemon.View().stalled_reason(),
              HasSubstr("vLLM 0.33.0 asked nothing after question 4 for 11m"));
  EXPECT_THAT(daemon.View().stalled_reason(), HasSubstr("it asked every 1m"));
  (void)engine.AskFor(engine.current);
  daemon.AdvanceSeconds(10);
  EXPECT_EQ(daemon.View().stalled(), "");
}

TEST_F(EngineTest, AnEngineThatChangesItsShapeGoesOnAsAnotherRun) {
  (void)engine.AskFor(Exchanged({0}));
  Engine larger(daemon, "run-2");
  PlanQuestion question = larger.Question();
  question.replaces_run_id = "run-1";
  question.shape.num_slots = 9;
  question.current = Placement::Static(Topology::Make(question.shape).value());
  const int64_t ticket = larger.Ask(question);
  EXPECT_EQ(daemon.View().run_id(), "run-2");
  ASSERT_TRUE(daemon.AnswerSolve(question.current));
  EXPECT_TRUE(larger.AnswerTo(ticket).ok());
}

TEST_F(EngineTest, AnEngineThatAsksNoMoreIsLostAndMayComeBack) {
  (void)engine.AskFor(engine.current);
  daemon.Advance(absl::Hours(2));
  daemon.AdvanceSeconds(60);
  EXPECT_EQ(daemon.View().state(), v1::JOB_STATE_LOST);
  EXPECT_THAT(daemon.View().end_reason(), HasSubstr("no question arrived for"));
  EXPECT_TRUE(engine.AskFor(engine.current).ok());
  EXPECT_EQ(daemon.View().state(), v1::JOB_STATE_IDLE);
}

TEST_F(EngineTest, ADrainAnswersTheQuestionThatWaits) {
  const int64_t ticket = engine.Ask();
  daemon.Handle(DrainRequested{absl::Seconds(1)});
  EXPECT_EQ(engine.AnswerTo(ticket)->placement, nullptr);
  EXPECT_EQ(engine.AnswerTo(engine.Ask())->placement, nullptr);
}

// An engine of random luck: answers are taken or lost, its daemon restarts or cannot write, and
// operators interfere. No question is left without an answer, and what the engine runs is known.
TEST(EngineRandomTest, TheDaemonKnowsWhatRunsAfterEveryQuestion) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto one_in = [&random](uint32_t n) { return random() % n == 0; };
    const auto any = [&random] {
      std::vector<int32_t> layers;
      for (int32_t layer = 0; layer < 4; ++layer) {
        if (random() % 2 == 0) layers.push_back(layer);
      }
      return Exchanged(layers);
    };
    CoreHarness daemon(EngineConfig(seed % 2 == 0 ? 2 : 4));
    Engine engine(daemon);
    for (int step = 0; step < 60; ++step) {
      if (one_in(10)) (void)daemon.Ask(Rebalance{.force = true});
      if (one_in(3)) (void)daemon.AnswerSolve(any());
      if (one_in(10)) (void)daemon.Ask(Pause{});
      if (one_in(5)) (void)daemon.Ask(Resume{});
      if (one_in(10)) (void)daemon.Ask(Rollback{});
      if (one_in(20)) engine.current = any();
      if (one_in(20)) daemon.Restart();
      daemon.store_works = !one_in(10);
      daemon.Advance(absl::Seconds(one_in(20) ? 5000 : 7));
      const int64_t ticket = engine.Ask();
      while (!daemon.replies().contains(ticket) && daemon.AnswerSolve(any())) continue;
      ASSERT_TRUE(daemon.replies().contains(ticket)) << daemon.state();
      const Outcome answer = engine.AnswerTo(ticket);
      ASSERT_NE(daemon.state(), "QUARANTINE") << daemon.LastReason("quarantined");
      if (!answer.ok()) continue;
      const Placement known = daemon.core().PlacementInForce(kJob)->placement;
      ASSERT_TRUE(
          (known.physical_to_logical_map() == engine.current.physical_to_logical_map()).all())
          << step << " " << daemon.state() << ": " << answer->outcome;
      if (answer->placement == nullptr) continue;
      ASSERT_NE(*answer->placement, engine.current);
      const bool taken = !one_in(4);
      if (taken) engine.current = *answer->placement;
      if (one_in(4)) continue;
      (void)engine.Settle(answer->version, taken);  // a store that fails refuses it
    }
  }
}

}  // namespace
}  // namespace eplb::core
