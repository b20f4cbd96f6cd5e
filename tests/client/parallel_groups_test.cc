// Jobs of four ranks as EP groups, as pipeline stages and as expert-tensor-parallel ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "client/client.h"
#include "proto/wire/report_counts.h"
#include "tests/client/faulty_channels.h"
#include "tests/client/session/proposals.h"
#include "tests/client/session/scripted_daemon.h"
#include "tests/client/test_job.h"

namespace eplb {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

struct Groups {
  const char* name;
  int32_t num_gpus;
  int32_t pipeline_parallel_size;
  int32_t expert_tensor_parallel;
};

OptionsHook Arranged(const Groups& groups) {
  return [num_gpus = groups.num_gpus, pipeline = groups.pipeline_parallel_size,
          tensor = groups.expert_tensor_parallel](ClientOptions& options) {
    options.num_gpus = num_gpus;
    options.pipeline_parallel_size = pipeline;
    options.expert_tensor_parallel = tensor;
  };
}

constexpr Groups kTwoPipelineStages = {"TwoPipelineStages", 2, 2, 1};
constexpr Groups kTwoTensorParallelRanks = {"TwoExpertTensorParallelRanks", 2, 1, 2};

// A few placements, the first and last of which change layers of all pipeline stages.
std::vector<Placement> Targets(const Placement& first) {
  const Placement all = Swapped(Swapped(Swapped(first, 0, 0, 2), 1, 1, 3), 2, 0, 3);
  const Placement second_layer = Swapped(all, 1, 0, 2);
  const Placement other_layers = Swapped(Swapped(second_layer, 0, 1, 2), 2, 1, 3);
  return {all, second_layer, other_layers, first};
}

Placement FirstPlacement(int32_t num_gpus) {
  return Placement::Static(
      *Topology::Make({.num_layers = 3, .num_experts = 4, .num_slots = 4, .num_gpus = num_gpus}));
}

class ParallelGroupsTest : public ::testing::TestWithParam<Groups> {};

INSTANTIATE_TEST_SUITE_P(
    All, ParallelGroupsTest,
    ::testing::Values(Groups{"TwoEpGroups", 2, 1, 1}, kTwoPipelineStages, kTwoTensorParallelRanks,
                      Groups{"FourPipelineStages", 1, 4, 1}),  // the fourth stage has no layer
    [](const auto& groups) { return groups.param.name; });

// Waits as a daemon does, because a rank that has not switched yet knows another base.
void ProposeOnceAllApplied(ScriptedDaemon& daemon, int64_t version, const Placement& current,
                           const Placement& target) {
  for (int32_t rank = 0; version > 0 && rank < kTestRanks; ++rank) {
    ASSERT_TRUE(daemon.WaitFor<wire::Applied>(rank, static_cast<int>(version)).has_value());
  }
  daemon.SendAll(ProposeTo(Running(version, current), target, version + 1, 1));
}

TEST_P(ParallelGroupsTest, EveryChunkIsSwitchedByAllRanksWithAllBytesInPlace) {
  const Groups& groups = GetParam();
  ScriptedDaemon daemon({});
  StartedJob job(daemon.endpoint(), {.options = Arranged(groups)});
  daemon.WaitForRanks(kTestRanks);
  const Placement first = FirstPlacement(groups.num_gpus);
  const std::vector<Placement> targets = Targets(first);
  std::vector<std::vector<int64_t>> steps(kTestRanks);
  job.Run([&](int32_t r, TestRank& rank) {
    Placement current = first;
    int64_t step = 0;
    for (const Placement& target : targets) {
      if (r == 0) ProposeOnceAllApplied(daemon, rank.client().placement().version, current, target);
      const auto switched =
          rank.StepUntil(step, [](const BoundaryResult& result) { return result.switched; });
      ASSERT_TRUE(switched.ok()) << switched.status();
      steps[static_cast<size_t>(r)].push_back(*switched);
      EXPECT_EQ(rank.WrongSlots(), 0);
      EXPECT_EQ(rank.client().placement().digest, DigestOf(target).Hex());
      step = *switched + 1;
      current = target;
    }
    const absl::Status checked = rank.client().CheckExperts(
        [&rank](int32_t layer, int32_t slot) { return rank.BytesOf(layer, slot); });
    EXPECT_TRUE(checked.ok()) << checked;
    EXPECT_EQ(rank.WrongSlots(), 0);
    EXPECT_EQ(rank.client().stats().commits, 4);
    rank.client().Close("finished");
  });
  EXPECT_THAT(steps, Each(steps[0]));
  ASSERT_EQ(steps[0].size(), targets.size());
  for (int32_t rank = 0; rank < kTestRanks; ++rank) {
    EXPECT_EQ(daemon.WaitFor<wire::Applied>(rank, 4)->version, 4);
    EXPECT_EQ(daemon.WaitFor<wire::Prepared>(rank, 4)->plan_hash,
              daemon.WaitFor<wire::Prepared>(0, 4)->plan_hash);
    const auto hello = daemon.WaitFor<wire::Hello>(rank);
    EXPECT_EQ(hello->pipeline_parallel_size, groups.pipeline_parallel_size);
    EXPECT_EQ(hello->expert_tensor_parallel, groups.expert_tensor_parallel);
    EXPECT_EQ(hello->weight_bytes, 96) << "also where there is no layer";
  }
}

TEST(PipelineTest, TransferThatFailsInAnotherPipelineStageDropsTheChunkOnAll) {
  ScriptedDaemon daemon({});
  StartedJob job(daemon.endpoint(),
                 {.options = Arranged(kTwoPipelineStages), .transport = OnRank<LossyTransport>(3)});
  daemon.WaitForRanks(kTestRanks);
  const Placement first = FirstPlacement(2);
  // Layer 0 is the first pipeline stage's, layer 1 the second's.
  const Placement target = Swapped(Swapped(first, 0, 0, 2), 1, 1, 3);
  daemon.SendAll(ProposeTo(Running(0, first), target, 7, 1));
  std::vector<int64_t> steps(kTestRanks, -1);
  job.Run([&](int32_t r, TestRank& rank) {
    std::string reason;
    const auto dropped = rank.StepUntil(0, [&](const BoundaryResult& result) {
      reason = result.reason;
      return !result.reason.empty();
    });
    ASSERT_TRUE(dropped.ok()) << dropped.status();
    steps[static_cast<size_t>(r)] = *dropped;
    EXPECT_THAT(reason, HasSubstr(r == 3 ? "another checksum" : "failed on another rank"));
    EXPECT_EQ(rank.client().placement().version, 0);
    EXPECT_EQ(rank.client().stats().dropped_chunks, 1);
    EXPECT_EQ(rank.WrongSlots(), 0);
    rank.client().Close("finished");
  });
  EXPECT_THAT(steps, Each(steps[0]));
}

// Says of all tensors that they are of `layer`.
void Relabel(std::vector<ExpertTensorView>& tensors, int32_t layer) {
  for (ExpertTensorView& tensor : tensors) {
    tensor.name = absl::StrCat(tensor.name, " as ", layer);
    tensor.layer = layer;
  }
}

TEST(PipelineTest, WrongRegistrationsAreNamedWithLayerAndRanks) {
  const auto started =
      [](const std::function<void(int32_t, std::vector<ExpertTensorView>&)>& change) {
        TestJob job("", {.options = Arranged(kTwoPipelineStages),
                         .tensors = [&](TestRank& rank, std::vector<ExpertTensorView>& tensors) {
                           change(rank.rank(), tensors);
                         }});
        return job.started();
      };
  // Ranks 0 and 1 hold the layers 0 and 2, ranks 2 and 3 layer 1.
  EXPECT_EQ(started([](int32_t rank, auto& tensors) {
              if (rank == 3) Relabel(tensors, 0);
            }),
            absl::FailedPreconditionError(
                "tensors: layers differs inside pipeline stage 1: rank 2 has 1, rank 3 has 0"));
  EXPECT_EQ(started([](int32_t rank, auto& tensors) {
              if (rank >= 2) Relabel(tensors, 0);
            }),
            absl::FailedPreconditionError("tensors: layer 0 is registered by pipeline stage 0 "
                                          "(ranks 0..1) and by pipeline stage 1 (ranks 2..3), "
                                          "expected one of them"));
  EXPECT_EQ(started([](int32_t rank, auto& tensors) {
              if (rank < 2) std::erase_if(tensors, [](const auto& of) { return of.layer == 2; });
            }),
            absl::FailedPreconditionError(
                "tensors: layer 2 is registered by none of the 2 pipeline stages"));
  EXPECT_EQ(
      started([](int32_t rank, auto& tensors) {
        if (rank == 1) tensors.clear();
      }),
      absl::FailedPreconditionError(
          "tensors: layers differs inside pipeline stage 0: rank 0 has 0, 2, rank 1 has none"));
  EXPECT_EQ(
      started([](int32_t rank, auto& tensors) {
        if (rank < 2) return;
        for (ExpertTensorView& tensor : tensors) tensor.row_bytes = 8;
      }),
      absl::FailedPreconditionError("tensors: weight_bytes differs: rank 0 has 96, rank 2 has 8"));
}

TEST(PipelineTest, CountsOfALayerThatOthersHoldAreRefused) {
  StartedJob job("", {.options = Arranged(kTwoPipelineStages)});
  const std::vector<int64_t> counts(4, 1);
  EXPECT_EQ(job.rank(2).client().Record(0, counts),
            absl::InvalidArgumentError("counts of layer 0: it is registered by pipeline stage 0, "
                                       "this rank is of pipeline stage 1"));
  EXPECT_TRUE(job.rank(2).client().Record(1, counts).ok());
  EXPECT_EQ(job.rank(0).client().Record(3, counts),
            absl::InvalidArgumentError("counts of layer 3, expected 0..2"));
}

TEST(PipelineTest, TheRankThatReportsForAllRecordsAllLayers) {
  StartedJob job("", {.options = [](ClientOptions& options) {
                   Arranged(kTwoPipelineStages)(options);
                   options.reduce = "root";
                 }});
  for (const int32_t layer : {0, 1, 2}) {
    EXPECT_TRUE(job.rank(0).client().Record(layer, std::vector<int64_t>(4, 1)).ok());
  }
}

// The sum of the first windows of these ranks, of 8 steps with one token per rank, expert and layer
// that it holds.
LoadMatrix FirstWindow(const Groups& groups, const std::vector<int32_t>& reporters) {
  ScriptedDaemon daemon({});
  TestJob job(daemon.endpoint(), {.options = Arranged(groups)});
  EXPECT_TRUE(job.started().ok()) << job.started();
  daemon.WaitForRanks(kTestRanks);
  job.Run([](int32_t /*r*/, TestRank& rank) {
    for (int64_t step = 0; step < 8; ++step) EXPECT_TRUE(rank.Step(step).ok());
  });
  LoadMatrix sum = LoadMatrix::Zero(3, 4);
  for (const int32_t rank : reporters) {
    EXPECT_TRUE(wire::AddCounts(*daemon.WaitFor<wire::LoadReport>(rank), &sum));
  }
  job.Run([](int32_t /*r*/, TestRank& rank) { rank.client().Close("finished"); });
  for (int32_t rank = 0; rank < kTestRanks; ++rank) {
    EXPECT_TRUE(daemon.WaitFor<wire::Goodbye>(rank).has_value());
    int32_t reports = 0;
    for (const wire::UpMessage& message : daemon.Said(rank)) {
      reports += std::holds_alternative<wire::LoadReport>(message) ? 1 : 0;
    }
    EXPECT_EQ(reports, std::count(reporters.begin(), reporters.end(), rank)) << "rank " << rank;
  }
  return sum;
}

TEST(ParallelGroupsLoadTest, EpGroupsAddUpAndRanksThatSeeTheSameTokensCountOnce) {
  EXPECT_TRUE((FirstWindow({"TwoEpGroups", 2, 1, 1}, {0, 1, 2, 3}) == 32).all());
  EXPECT_TRUE((FirstWindow(kTwoPipelineStages, {0, 1, 2, 3}) == 16).all());
  EXPECT_TRUE((FirstWindow(kTwoTensorParallelRanks, {0, 2}) == 16).all());
}

}  // namespace
}  // namespace eplb
