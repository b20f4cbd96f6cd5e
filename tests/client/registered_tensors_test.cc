#include "client/registered_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

class RegisteredTensorsTest : public ::testing::Test {
 protected:
  static ExpertTensorView Derived() {
    ExpertTensorView view;
    view.name = "scale";
    view.role = Role::kDerived;
    view.rebuild = [](int32_t, std::span<const int32_t>) { return absl::OkStatus(); };
    return view;
  }
  ExpertTensorView Weight() {
    return {.name = "w",
            .layer = 0,
            .role = Role::kWeight,
            .base = memory_,
            .num_rows = 2,
            .row_bytes = 32,
            .row_stride = 64};
  }
  static std::string Refused(const ExpertTensorView& view) {
    const absl::Status status = SortByRole({&view, 1}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  const ExecutorOptions options_ = {
      .topology =
          *Topology::Make({.num_layers = 1, .num_experts = 4, .num_slots = 4, .num_gpus = 2}),
      .gpu = GpuId{0}};
  std::byte memory_[128] = {};
};

TEST_F(RegisteredTensorsTest, DerivedTensorsAreComparedAndNeedNoBytes) {
  const std::vector<ExpertTensorView> views = {Derived(), Weight()};
  const absl::StatusOr<RegisteredTensors> tensors = SortByRole(views);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  const absl::StatusOr<TensorNeeds> needs = NeedsOf(*tensors, options_);
  ASSERT_TRUE(needs.ok()) << needs.status();
  EXPECT_EQ(needs->bytes.weight, 32);
  EXPECT_EQ(needs->bytes.state, 0);
  EXPECT_THAT(needs->compared,
              ElementsAre(Pair("layers", "0"), Pair("tensor 0", "layer 0 weight w row_bytes 32"),
                          Pair("tensor 1", "layer 0 derived scale")));
  EXPECT_THAT(needs->of_ep_group,
              ElementsAre(Pair("layers", "0"), Pair("weight_bytes", "32"), Pair("memory", "host"),
                          Pair("state_bytes", "0"),
                          Pair("staging_bytes", "128")));  // 1 layer * 2 slots * 64
}

// Returns the fields of a rank with layers of weights of 32 bytes.
StartFields Said(const char* layers, const char* state = "8", const char* staging = "128") {
  return {{"layers", layers},
          {"weight_bytes", "32"},
          {"memory", "host"},
          {"state_bytes", state},
          {"staging_bytes", staging}};
}

// Returns a grid of EP groups of two GPUs.
RankGrid Grid(int32_t world_size, int32_t pipeline_parallel_size = 1) {
  return RankGrid::Make({.world_size = world_size,
                         .num_gpus = 2,
                         .pipeline_parallel_size = pipeline_parallel_size})
      .value();
}

TEST_F(RegisteredTensorsTest, JobNeedsWhatItsLargestEpGroupNeeds) {
  const TensorNeeds mine{.bytes = {.weight = 32, .state = 8},
                         .staging_bytes = 128,
                         .memory = {},
                         .compared = {},
                         .of_ep_group = {}};
  const std::vector<StartFields> ranks = {Said("0"), Said("0"), Said("0", "12", "192"),
                                          Said("0", "12", "192")};
  const absl::StatusOr<JobNeeds> job = JoinEpGroups(mine, ranks, Grid(4), 1);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->bytes.weight, 32);
  EXPECT_EQ(job->bytes.state, 12);
  EXPECT_EQ(job->staging_bytes, 192);
  EXPECT_THAT(job->pipeline_stage_of_layer, ElementsAre(0));
}

TEST_F(RegisteredTensorsTest, EachLayerIsOnePipelineStages) {
  const auto joined = [](const std::vector<const char*>& layers) {
    std::vector<StartFields> ranks;
    ranks.reserve(layers.size());
    for (const char* of_rank : layers) ranks.push_back(Said(of_rank));
    return JoinEpGroups({}, ranks, Grid(static_cast<int32_t>(layers.size()), 2), 3);
  };
  EXPECT_THAT(joined({"0, 2", "0, 2", "1", "1"})->pipeline_stage_of_layer, ElementsAre(0, 1, 0));
  EXPECT_THAT(joined({"none", "none", "0, 1, 2", "0, 1, 2"})->pipeline_stage_of_layer,
              ElementsAre(1, 1, 1));
  EXPECT_EQ(joined({"0", "0", "2", "2"}).status(),
            absl::FailedPreconditionError(
                "tensors: layer 1 is registered by none of the 2 pipeline stages"));
  EXPECT_EQ(joined({"0, 1", "0, 1", "1, 2", "1, 2"}).status(),
            absl::FailedPreconditionError("tensors: layer 1 is registered by pipeline stage 0 "
                                          "(ranks 0..1) and by pipeline stage 1 (ranks 2..3), "
                                          "expected one of them"));
  EXPECT_EQ(joined({"0, 3", "0, 3", "1", "1"}).status().message(), "tensors: layers is \"0, 3\"");
}

TEST_F(RegisteredTensorsTest, PipelineStagesMayNotDifferInBytesAndMemory) {
  std::vector<StartFields> ranks = {Said("none"), Said("none"), Said("0"),
                                    Said("0"),    Said("1"),    Said("1")};
  for (const int32_t rank : {0, 1}) {
    ranks[static_cast<size_t>(rank)][1].second = "any";
    ranks[static_cast<size_t>(rank)][2].second = "any";
  }
  const absl::StatusOr<JobNeeds> job = JoinEpGroups({}, ranks, Grid(6, 3), 2);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->bytes.weight, 32) << "also where there are no tensors";
  ranks[4][1].second = "48";
  EXPECT_EQ(JoinEpGroups({}, ranks, Grid(6, 3), 2).status().message(),
            "tensors: weight_bytes differs: rank 2 has 32, rank 4 has 48");
  ranks[4][1].second = "32";
  ranks[5][2].second = "GPU";
  EXPECT_EQ(JoinEpGroups({}, ranks, Grid(6, 3), 2).status().message(),
            "tensors: memory differs: rank 2 has host, rank 5 has GPU");
}

TEST_F(RegisteredTensorsTest, PipelineStageMayHaveNoTensors) {
  ExecutorOptions options = options_;
  EXPECT_EQ(NeedsOf({}, options).status().message(), "no expert tensors are registered");
  options.layers = LayersHeld::kSome;
  const absl::StatusOr<TensorNeeds> needs = NeedsOf({}, options);
  ASSERT_TRUE(needs.ok()) << needs.status();
  EXPECT_THAT(needs->compared, ElementsAre(Pair("layers", "none")));
  EXPECT_EQ(needs->staging_bytes, 0);
  const ExpertTensorView derived = Derived();
  EXPECT_EQ(NeedsOf(*SortByRole({&derived, 1}), options).status().message(),
            "tensor \"scale\": layer 0 has no tensor on this rank that it could be derived from");
}

TEST_F(RegisteredTensorsTest, DifferenceInsideALaneIsRefusedByName) {
  StartFields right = Said("0");
  right.emplace_back("state 0", "m");
  std::vector<StartFields> ranks(4, right);
  ranks[3].back().second = "n";
  EXPECT_EQ(JoinEpGroups({}, ranks, Grid(4), 1).status(),
            absl::FailedPreconditionError(
                "tensors: state 0 differs inside an EP group: rank 2 has m, rank 3 has n"));
  ranks[3].pop_back();
  EXPECT_EQ(JoinEpGroups({}, ranks, Grid(4), 1).status().message(),
            "tensors: state 0 differs inside an EP group: rank 2 has m, rank 3 has no such "
            "field");
}

TEST_F(RegisteredTensorsTest, DerivedTensorWithRowsIsRefused) {
  ExpertTensorView view = Derived();
  view.base = memory_;
  EXPECT_EQ(Refused(view), "tensor \"scale\": is derived and has rows, but it is not moved");
}

TEST_F(RegisteredTensorsTest, MovedTensorWithARebuildIsRefused) {
  ExpertTensorView view = Weight();
  view.rebuild = Derived().rebuild;
  EXPECT_EQ(Refused(view), "tensor \"w\": has a rebuild, but it is moved and not derived");
}

}  // namespace
}  // namespace eplb
