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
  EXPECT_THAT(needs->compared, ElementsAre(Pair("tensor 0", "layer 0 weight w row_bytes 32"),
                                           Pair("tensor 1", "layer 0 derived scale"),
                                           Pair("weight_bytes", "32"), Pair("memory", "host")));
  EXPECT_THAT(needs->of_lane, ElementsAre(Pair("state_bytes", "0"),
                                          Pair("staging_bytes", "128")));  // 1 layer * 2 slots * 64
}

TEST_F(RegisteredTensorsTest, JobNeedsWhatItsLargestLaneNeeds) {
  const auto said = [](const char* state, const char* staging) -> StartFields {
    return {{"state_bytes", state}, {"staging_bytes", staging}};
  };
  const TensorNeeds mine{.bytes = {.weight = 32, .state = 8},
                         .staging_bytes = 128,
                         .memory = {},
                         .compared = {},
                         .of_lane = {}};
  const std::vector<StartFields> ranks = {said("8", "128"), said("8", "128"), said("12", "192"),
                                          said("12", "192")};
  const absl::StatusOr<JobNeeds> job = JoinLanes(mine, ranks, 2);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->bytes.weight, 32);
  EXPECT_EQ(job->bytes.state, 12);
  EXPECT_EQ(job->staging_bytes, 192);
}

TEST_F(RegisteredTensorsTest, DifferenceInsideALaneIsRefusedByName) {
  const StartFields right = {{"state_bytes", "8"}, {"staging_bytes", "128"}, {"state 0", "m"}};
  std::vector<StartFields> ranks(4, right);
  ranks[3][2].second = "n";
  EXPECT_EQ(JoinLanes({}, ranks, 2).status(),
            absl::FailedPreconditionError(
                "tensors: state 0 differs inside a lane: rank 2 has m, rank 3 has n"));
  ranks[3].pop_back();
  EXPECT_EQ(JoinLanes({}, ranks, 2).status().message(),
            "tensors: state 0 differs inside a lane: rank 2 has m, rank 3 has no such "
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
