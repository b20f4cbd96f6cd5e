#include "client/rows/expert_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "client/rows/derived_tensors.h"
#include "client/rows/executor.h"
#include "tests/client/rows/expert_world.h"

namespace eplb {

namespace {

class RowOverlapTest : public ::testing::Test {
 protected:
  ExpertTensor At(const std::string& name, int64_t begin, int64_t row_bytes, int64_t row_stride) {
    return {.name = name,
            .layer = LayerId{0},
            .role = TensorRole::kWeight,
            .base = memory_ + begin,
            .num_rows = 3,
            .row_bytes = row_bytes,
            .row_stride = row_stride};
  }

  std::byte memory_[256] = {};
};

TEST_F(RowOverlapTest, SharedBytesAreRefusedNamingBothTensorsAndSlots) {
  const std::vector<ExpertTensor> tensors = {At("w", 0, 16, 32), At("bias", 60, 8, 32)};
  EXPECT_EQ(CheckRowsApart(tensors),
            absl::InvalidArgumentError(
                "tensor \"w\": local slot 2 shares 4 bytes with local slot 0 of \"bias\"; each "
                "byte of an expert is registered once (docs/registering-tensors.md)"));
}

TEST_F(RowOverlapTest, AgreesWithCountingEachByte) {
  const uint32_t seed = 7;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  int32_t num_refused = 0;
  for (int32_t i = 0; i < 2000; ++i) {
    std::vector<ExpertTensor> tensors;
    std::multiset<const std::byte*> bytes;
    for (int32_t t = 0; t < 3; ++t) {
      const auto row_bytes = static_cast<int64_t>(1 + random() % 6);
      const auto row_stride = row_bytes + static_cast<int64_t>(random() % 40);
      tensors.push_back(
          At(absl::StrCat("t", t), static_cast<int64_t>(random() % 100), row_bytes, row_stride));
      for (int32_t row = 0; row < 3; ++row) {
        for (int64_t b = 0; b < row_bytes; ++b) {
          bytes.insert(static_cast<std::byte*>(tensors.back().base) + row * row_stride + b);
        }
      }
    }
    const bool apart =
        std::set<const std::byte*>(bytes.begin(), bytes.end()).size() == bytes.size();
    EXPECT_EQ(CheckRowsApart(tensors).ok(), apart) << "case " << i;
    num_refused += apart ? 0 : 1;
  }
  EXPECT_GT(num_refused, 200);
  EXPECT_LT(num_refused, 1800);
}

using ::testing::HasSubstr;

class ExpertTensorsTest : public ::testing::Test {
 protected:
  ExpertTensorsTest()
      : topology_(
            *Topology::Make({.num_layers = 2, .num_experts = 4, .num_slots = 5, .num_gpus = 2})),
        memory_(topology_, GpuId{0},
                {{.name = "w", .role = TensorRole::kWeight, .row_bytes = 100, .row_stride = 100},
                 {.name = "m", .role = TensorRole::kState, .row_bytes = 8, .row_stride = 16}}),
        tensors_(memory_.tensors()) {}

  void ExpectRefused(const char* why) {
    const absl::Status status = CheckTensors(topology_, GpuId{0}, tensors_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    tensors_ = memory_.tensors();
  }

  Topology topology_;
  ExpertMemory memory_;
  std::vector<ExpertTensor> tensors_;
};

TEST_F(ExpertTensorsTest, BytesOfAnExpertAreSummedByRole) {
  const auto bytes = CheckTensors(topology_, GpuId{0}, tensors_);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(bytes->weight, 100);
  EXPECT_EQ(bytes->state, 8);
}

TEST_F(ExpertTensorsTest, EachFaultIsRefusedByTheTensorsName) {
  tensors_[1].name = tensors_[0].name;
  ExpectRefused("\"layers.0.w\": registered twice");
  tensors_[2].layer = LayerId{2};
  ExpectRefused("\"layers.1.w\": layer 2 is not in 0..1");
  tensors_[0].num_rows = 2;
  ExpectRefused("\"layers.0.w\": has 2 rows, GPU 0 has 3 slots");
  tensors_[0].row_stride = 99;
  ExpectRefused("row_stride 99 is below row_bytes 100");
  tensors_[0].row_stride = 0;
  ExpectRefused("\"layers.0.w\": row_stride is 0: a tensor that all experts share");
  tensors_[0].row_stride = int64_t{1} << 62;
  ExpectRefused("\"layers.0.w\": 3 rows of row_stride 4611686018427387904 exceed 2^63 bytes");
  tensors_[0].base = nullptr;
  ExpectRefused("base is null");
  tensors_[3].row_bytes = 0;
  ExpectRefused("row_bytes is 0");
  tensors_[3].row_bytes = 9;
  ExpectRefused(
      "\"layers.0.m\": a state of 8 bytes a row in layer 0 has no counterpart in layer 1");
  tensors_[3].role = TensorRole::kWeight;
  ExpectRefused("no counterpart");
  tensors_.pop_back();
  ExpectRefused("\"layers.0.m\"");
  tensors_.resize(2);
  ExpectRefused("layer 1 has no expert tensors");
  tensors_.clear();
  ExpectRefused("no expert tensors");
  EXPECT_EQ(CheckTensors(topology_, GpuId{2}, tensors_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ExpertTensorsTest, DescriptionIsEqualOnRanksWithOtherMemory) {
  const ExpertMemory other(
      topology_, GpuId{1},
      {{.name = "m", .role = TensorRole::kState, .row_bytes = 8, .row_stride = 64},
       {.name = "w", .role = TensorRole::kWeight, .row_bytes = 100, .row_stride = 128}});
  EXPECT_EQ(DescribeTensors(tensors_), DescribeTensors(other.tensors()));
  EXPECT_EQ(DescribeTensors(tensors_),
            "layer 0 state layers.0.m row_bytes 8\nlayer 0 weight layers.0.w row_bytes 100\n"
            "layer 1 state layers.1.m row_bytes 8\nlayer 1 weight layers.1.w row_bytes 100\n");
  tensors_[0].row_bytes = 99;
  EXPECT_NE(DescribeTensors(tensors_), DescribeTensors(other.tensors()));
}

TEST_F(ExpertTensorsTest, StagingHoldsTheFullestGpuForEachLayerOfAChunk) {
  ExecutorOptions options{.topology = topology_, .gpu = GpuId{0}};
  // 2 layers (of at most 4) * 3 slots * (128 + 64) bytes.
  EXPECT_EQ(*StagingBytes(options, tensors_), 2 * 3 * 192);
  options.layers_per_chunk = 1;
  EXPECT_EQ(*StagingBytes(options, tensors_), 3 * 192);
  options.layers_per_chunk = -1;
  EXPECT_EQ(StagingBytes(options, tensors_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ExpertTensorsTest, PipelineStageMayHaveSomeLayersOrNone) {
  ExecutorOptions options{
      .topology = topology_, .gpu = GpuId{0}, .layers = LayersHeld::kSome, .layers_per_chunk = 4};
  tensors_.resize(2);
  EXPECT_EQ(CheckTensors(topology_, GpuId{0}, tensors_, LayersHeld::kSome)->weight, 100);
  EXPECT_EQ(LayersOf(tensors_), std::vector<int32_t>{0});
  EXPECT_EQ(*StagingBytes(options, tensors_), 3 * 192) << "it has one layer";
  tensors_.clear();
  EXPECT_EQ(CheckTensors(topology_, GpuId{0}, tensors_, LayersHeld::kSome)->weight, 0);
  EXPECT_EQ(*StagingBytes(options, tensors_), 0);
}

TEST(StagingLayersTest, SmallExpertsHaveRoomForMoreLayers) {
  const Topology topology =
      *Topology::Make({.num_layers = 20, .num_experts = 4, .num_slots = 4, .num_gpus = 1});
  const auto layers = [&](int64_t row_bytes) {
    const ExpertTensor tensor{.name = "w", .num_rows = 4, .row_bytes = row_bytes};
    return StagingLayers({.topology = topology, .gpu = GpuId{0}}, {&tensor, 1});
  };
  EXPECT_EQ(layers(1024), 20);
  EXPECT_EQ(layers(int64_t{8} << 20), 8) << "256 MiB of 4 slots of 8 MiB";
  EXPECT_EQ(layers(int64_t{1} << 30), 4);
}

TEST(StagingBytesTest, AChunkHasNoMoreRowsThanAreCopiedTogether) {
  const Topology topology =
      *Topology::Make({.num_layers = 600, .num_experts = 64, .num_slots = 64, .num_gpus = 1});
  const ExpertMemory memory(
      topology, GpuId{0},
      {{.name = "w", .role = TensorRole::kWeight, .row_bytes = 1, .row_stride = 1},
       {.name = "m", .role = TensorRole::kState, .row_bytes = 1, .row_stride = 1}});
  ExecutorOptions options{.topology = topology, .gpu = GpuId{0}, .layers_per_chunk = 512};
  EXPECT_TRUE(StagingBytes(options, memory.tensors()).ok());
  options.layers_per_chunk = 513;
  EXPECT_THAT(std::string(StagingBytes(options, memory.tensors()).status().message()),
              HasSubstr("has 65664 rows, at most 65536"));
}

using ::testing::ElementsAre;
using ::testing::Pair;

class DerivedTensorsTest : public ::testing::Test {
 protected:
  DerivedTensor Make(const std::string& name, int32_t layer) {
    return {.name = name,
            .layer = LayerId{layer},
            .rebuild = [this, name](int32_t of, std::span<const int32_t> slots) {
              calls_.push_back(absl::StrCat(name, "@", of, ": ", absl::StrJoin(slots, ",")));
              return absl::OkStatus();
            }};
  }

  // 2 layers, 4 experts on 5 slots: GPU 0 has slots 0..2, GPU 1 has 3 and 4.
  const Topology topology_ =
      *Topology::Make({.num_layers = 2, .num_experts = 4, .num_slots = 5, .num_gpus = 2});
  const Placement static_ = Placement::Static(topology_);  // 0 1 2 | 3 0

  MigrationPlan PlanTo(std::vector<int32_t> slots, std::vector<int32_t> ranks) const {
    const LayerPlacement layer{.layer = LayerId{1},
                               .physical_to_logical = std::move(slots),
                               .replica_rank = std::move(ranks)};
    return *PlanMigration(
        static_, *static_.WithLayers({&layer, 1}), {},
        {.weight_bytes = 8, .state_bytes = 8, .state_residency = StateResidency::kWithPrimary});
  }

  std::vector<std::string> calls_;
};

TEST_F(DerivedTensorsTest, EachFaultIsRefusedByTheTensorsName) {
  const ExpertMemory memory(
      topology_, GpuId{0},
      {{.name = "w", .role = TensorRole::kWeight, .row_bytes = 8, .row_stride = 8}});
  const auto refused = [&](std::vector<DerivedTensor> derived) {
    return std::string(CheckDerived(topology_, memory.tensors(), derived).message());
  };
  EXPECT_EQ(refused({Make("a", 0), Make("b", 0), Make("c", 1)}), "");
  EXPECT_EQ(refused({Make("a", 0), Make("a", 1)}), "tensor \"a\": registered twice");
  EXPECT_EQ(refused({Make("layers.1.w", 0)}), "tensor \"layers.1.w\": registered twice");
  EXPECT_EQ(refused({Make("a", 2)}), "tensor \"a\": layer 2 is not in 0..1");
  EXPECT_EQ(refused({{.name = "a", .layer = LayerId{0}}}),
            "tensor \"a\": is derived and has no rebuild");
}

TEST_F(DerivedTensorsTest, DescriptionDoesNotDependOnTheOrder) {
  const std::vector<DerivedTensor> one = {Make("b", 1), Make("b", 0), Make("a", 1)};
  const std::vector<DerivedTensor> other = {Make("a", 1), Make("b", 0), Make("b", 1)};
  EXPECT_EQ(DescribeDerived(one), "layer 0 derived b\nlayer 1 derived a\nlayer 1 derived b\n");
  EXPECT_EQ(DescribeDerived(one), DescribeDerived(other));
}

TEST_F(DerivedTensorsTest, SlotsWhoseExpertOrStateChangesAreWritten) {
  // Slots 0 and 2 of GPU 0 all-gather their experts, and slot 4 becomes the primary of expert 0.
  const MigrationPlan plan = PlanTo({2, 1, 0, 3, 0}, {0, 0, 1, 0, 0});
  EXPECT_THAT(WrittenSlots(plan, topology_, GpuId{0}),
              ElementsAre(Pair(LayerId{1}, ElementsAre(0, 2))));
  EXPECT_THAT(WrittenSlots(plan, topology_, GpuId{1}),
              ElementsAre(Pair(LayerId{1}, ElementsAre(1))));
}

TEST_F(DerivedTensorsTest, RebuildIsCalledOncePerTensorOfALayerThatChanged) {
  const MigrationPlan plan = PlanTo({2, 1, 0, 3, 0}, {0, 0, 1, 0, 0});
  const std::vector<DerivedTensor> derived = {Make("b", 1), Make("a", 1), Make("c", 0)};
  EXPECT_TRUE(RebuildDerived(derived, plan, topology_, GpuId{0}).ok());
  EXPECT_THAT(calls_, ElementsAre("b@1: 0,2", "a@1: 0,2"));
}

}  // namespace

}  // namespace eplb
