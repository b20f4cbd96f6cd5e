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
  EXPECT_THAT(
      needs->of_ep_group,
      ElementsAre(Pair("layers", "0"), Pair("weight_bytes", "32"), Pair("memory", "host"),
                  Pair("state_bytes", "0"), Pair("staging_bytes", "128"),  // 1 layer * 2 slots * 64
                  Pair("staging_layers", "4")));
}

// Returns the fields of a rank with layers of weights of 32 bytes.
StartFields Said(const char* layers, const char* state = "8", const char* staging = "128",
                 const char* staging_layers = "4") {
  return {{"layers", layers},     {"weight_bytes", "32"},     {"memory", "host"},
          {"state_bytes", state}, {"staging_bytes", staging}, {"staging_layers", staging_layers}};
}

// Returns a grid of EP groups of two GPUs.
RankGrid Grid(int32_t world_size, int32_t pipeline_parallel_size = 1) {
  return RankGrid::Make({.world_size = world_size,
                         .num_gpus = 2,
                         .pipeline_parallel_size = pipeline_parallel_size})
      .value();
}

TEST_F(RegisteredTensorsTest, JobNeedsWhatItsLargestEpGroupNeeds) {
  const TensorNeeds mine{
      .bytes = {.weight = 32, .state = 8}, .staging_layers = 4, .staging_bytes = 128};
  const std::vector<StartFields> ranks = {Said("0"), Said("0"), Said("0", "12", "192", "3"),
                                          Said("0", "12", "192", "3")};
  const absl::StatusOr<JobNeeds> job = JoinEpGroups(mine, ranks, Grid(4), 1);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->bytes.weight, 32);
  EXPECT_EQ(job->bytes.state, 12);
  EXPECT_EQ(job->staging_bytes, 192);
  EXPECT_EQ(job->staging_layers, 3) << "of the EP group with room for the fewest";
  EXPECT_THAT(job->pipeline_stage_of_layer, ElementsAre(0));
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
