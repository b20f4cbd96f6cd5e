#include "tests/client/rows/replica_contract.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "client/rows/replica_rows.h"
#include "client/rows/square_sums.h"
#include "tests/client/rows/control/world.h"
#include "tests/client/rows/expert_world.h"
#include "tests/cuda/gradient_case.h"

namespace eplb {
namespace {

using ::testing::AnyOf;
using ::testing::Each;

namespace plain = cuda::testing;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr int32_t kLayers = 3;

struct GradientShape {
  const char* name;
  cuda::ElementType type;
  int64_t elements;
  int64_t padding;  // bytes behind a row
};
// Some rows are aligned to nothing but their elements, and one to less.
constexpr GradientShape kShapes[] = {{"float32", cuda::ElementType::kFloat32, 333, 0},
                                     {"float64", cuda::ElementType::kFloat64, 40, 8},
                                     {"bfloat16", cuda::ElementType::kBfloat16, 77, 7},
                                     {"float16", cuda::ElementType::kFloat16, 129, 0}};

int64_t RowBytes(const GradientShape& shape) {
  return shape.elements * cuda::ElementBytes(shape.type);
}

Topology TopologyOf(int32_t experts, int32_t slots, int32_t gpus) {
  return Topology::Make(
             {.num_layers = kLayers, .num_experts = experts, .num_slots = slots, .num_gpus = gpus})
      .value();
}

}  // namespace

ReplicaGroup::ReplicaGroup(const Placement& placement, const TransportKind& kind,
                           int64_t staging_bytes)
    : placement_(placement),
      num_ranks_(placement.topology().num_gpus()),
      memory_(kind.queue),
      tensors_(static_cast<size_t>(num_ranks_)),
      buffers_(tensors_.size()),
      expected_(tensors_.size()),
      num_posts_(tensors_.size()) {
  Transports transports = kind.make(num_ranks_, staging_bytes);
  for (size_t rank = 0; rank < tensors_.size(); ++rank) {
    carriers_.push_back(std::make_unique<RowCarrier>(
        std::move(transports[rank]),
        kind.queue == nullptr ? cuda::MakeHostRowQueue() : kind.queue()));
    const int32_t slots = placement.topology().SlotsOf(GpuId{static_cast<int32_t>(rank)});
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for (const GradientShape& shape : kShapes) {
        const int64_t stride = RowBytes(shape) + shape.padding;
        expected_[rank].emplace_back(static_cast<size_t>(stride * slots), kPadding);
        buffers_[rank].push_back(memory_.Put(expected_[rank].back()));
        tensors_[rank].push_back({.rows = {.name = absl::StrCat(layer, ".", shape.name),
                                           .layer = LayerId{layer},
                                           .base = buffers_[rank].back().data(),
                                           .num_rows = slots,
                                           .row_bytes = RowBytes(shape),
                                           .row_stride = stride},
                                  .type = shape.type});
      }
    }
  }
}

std::span<std::byte> ReplicaGroup::PlainRow(size_t tensor, SlotId slot) {
  const GpuId gpu = placement_.topology().GpuOf(slot);
  const auto rank = static_cast<size_t>(gpu.value);
  const ExpertTensor& rows = tensors_[rank][tensor].rows;
  const int64_t at = (slot.value - placement_.topology().FirstSlotOf(gpu).value) * rows.row_stride;
  return std::span(expected_[rank][tensor])
      .subspan(static_cast<size_t>(at), static_cast<size_t>(rows.row_bytes));
}

template <class Visitor>
void ReplicaGroup::VisitExperts(const Visitor& visitor) const {
  for (size_t tensor = 0; tensor < tensors_[0].size(); ++tensor) {
    for (int32_t expert = 0; expert < placement_.topology().num_experts(); ++expert) {
      visitor(tensor, placement_.ReplicasOf(tensors_[0][tensor].rows.layer, ExpertId{expert}));
    }
  }
}

void ReplicaGroup::WriteRows() {
  for (size_t rank = 0; rank < buffers_.size(); ++rank) {
    for (size_t tensor = 0; tensor < buffers_[rank].size(); ++tensor) {
      memory_.Write(buffers_[rank][tensor], expected_[rank][tensor]);
    }
  }
}

void ReplicaGroup::Fill(std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  VisitExperts([&](size_t tensor, std::span<const int32_t> slots) {
    const cuda::ElementType type = tensors_[0][tensor].type;
    for (const int32_t slot : slots) {
      const std::span<std::byte> row = PlainRow(tensor, SlotId{slot});
      for (size_t at = 0; at < row.size(); at += static_cast<size_t>(cuda::ElementBytes(type))) {
        plain::Encode(type, std::ldexp(normal(random), static_cast<int>(random() % 16) - 8),
                      row.data() + at);
      }
    }
  });
  WriteRows();
}

void ReplicaGroup::FillPrimariesAs(const ReplicaGroup& other) {
  for (size_t tensor = 0; tensor < tensors_[0].size(); ++tensor) {
    const LayerId layer = tensors_[0][tensor].rows.layer;
    for (int32_t expert = 0; expert < placement_.topology().num_experts(); ++expert) {
      const auto from = other.PlainRow(tensor, other.placement_.PrimaryOf(layer, ExpertId{expert}));
      const auto to = PlainRow(tensor, placement_.PrimaryOf(layer, ExpertId{expert}));
      std::memcpy(to.data(), from.data(), to.size());
    }
  }
  WriteRows();
}

void ReplicaGroup::SumPlainly() {
  VisitExperts([&](size_t tensor, std::span<const int32_t> slots) {
    const cuda::ElementType type = tensors_[0][tensor].type;
    const std::span<std::byte> sum = PlainRow(tensor, SlotId{slots[0]});
    for (const int32_t slot : slots.subspan(1)) {
      const std::span<const std::byte> row = PlainRow(tensor, SlotId{slot});
      for (size_t at = 0; at < row.size(); at += static_cast<size_t>(cuda::ElementBytes(type))) {
        plain::Encode(type,
                      plain::PlainSum(type, plain::Decode(type, sum.data() + at),
                                      plain::Decode(type, row.data() + at)),
                      sum.data() + at);
      }
    }
  });
}

void ReplicaGroup::BroadcastPlainly() {
  VisitExperts([&](size_t tensor, std::span<const int32_t> slots) {
    const std::span<const std::byte> primary = PlainRow(tensor, SlotId{slots[0]});
    for (const int32_t slot : slots.subspan(1)) {
      std::memcpy(PlainRow(tensor, SlotId{slot}).data(), primary.data(), primary.size());
    }
  });
}

std::vector<double> ReplicaGroup::SquaresPlainly() const {
  const int32_t experts = placement_.topology().num_experts();
  std::vector<double> squares(size_t{kLayers} * static_cast<size_t>(experts));
  for (size_t tensor = 0; tensor < tensors_[0].size(); ++tensor) {
    const LayerId layer = tensors_[0][tensor].rows.layer;
    for (int32_t expert = 0; expert < experts; ++expert) {
      const auto row = PlainRow(tensor, placement_.PrimaryOf(layer, ExpertId{expert}));
      squares[static_cast<size_t>(layer.value) * static_cast<size_t>(experts) +
              static_cast<size_t>(expert)] +=
          plain::PlainSquares(tensors_[0][tensor].type, row.data(), std::ssize(row));
    }
  }
  return squares;
}

int32_t ReplicaGroup::CountWrong() {
  int32_t wrong = 0;
  for (size_t rank = 0; rank < buffers_.size(); ++rank) {
    for (size_t tensor = 0; tensor < buffers_[rank].size(); ++tensor) {
      wrong += memory_.Holds(buffers_[rank][tensor], expected_[rank][tensor]) ? 0 : 1;
    }
  }
  return wrong;
}

std::vector<absl::Status> ReplicaGroup::Run(const Body& body, int32_t absent) {
  std::vector<absl::Status> results(carriers_.size());
  if (absent >= 0) carriers_[static_cast<size_t>(absent)].reset();
  RunRanks(num_ranks_, [&](int32_t rank) {
    if (rank == absent) return;
    const auto index = static_cast<size_t>(rank);
    EpGroupCall call{.carrier = *carriers_[index],
                     .placement = placement_,
                     .gpu = GpuId{rank},
                     .ranks = {},
                     .next_post_id = [&, index] { return ++num_posts_[index]; },
                     .deadline = absl::Now() + kPatience};
    for (int32_t peer = 0; peer < num_ranks_; ++peer) call.ranks.push_back(RankId{peer});
    results[index] = body(rank, call);
    if (results[index].ok()) return;
    call.carrier.Settle();
    call.carrier.Leave();
  });
  return results;
}

std::vector<absl::Status> ReplicaGroup::Carry(ReplicaFlow flow, int32_t absent) {
  return Run(
      [&](int32_t rank, EpGroupCall& call) -> absl::Status {
        EPLB_ASSIGN_OR_RETURN(const auto posts,
                              PlanReplicaPosts(placement_, call.gpu, tensors(rank), flow,
                                               std::ssize(call.carrier.staging()), call.first_row));
        return CarryReplicaRows(posts, flow, call);
      },
      absent);
}

TEST_P(ReplicaContractTest, SumsAreThoseOfAPlainLoopInTheOrderOfReplicas) {
  constexpr uint64_t kSeed = 77;
  std::mt19937 placements(kSeed);
  std::mt19937_64 random(kSeed);
  for (const auto& [experts, slots, gpus] :
       {std::tuple{4, 4, 1}, {2, 8, 1}, {3, 7, 2}, {4, 13, 3}, {8, 16, 5}, {5, 20, 8}}) {
    for (const int64_t staging : {int64_t{1344}, int64_t{1} << 16}) {
      SCOPED_TRACE(absl::StrCat("seed ", kSeed, ": ", experts, " experts in ", slots, " slots of ",
                                gpus, " GPUs, staging ", staging));
      ReplicaGroup ep_group(RandomPlacement(placements, TopologyOf(experts, slots, gpus)),
                            GetParam(), staging);
      for (int32_t step = 0; step < 2; ++step) {
        ep_group.Fill(random);
        ep_group.SumPlainly();
        EXPECT_THAT(ep_group.Carry(ReplicaFlow::kToPrimary), Each(absl::OkStatus()));
        EXPECT_EQ(ep_group.CountWrong(), 0);
        ep_group.BroadcastPlainly();
        EXPECT_THAT(ep_group.Carry(ReplicaFlow::kFromPrimary), Each(absl::OkStatus()));
        EXPECT_EQ(ep_group.CountWrong(), 0);
      }
    }
  }
}

TEST_P(ReplicaContractTest, WithoutReplicasNothingIsPosted) {
  std::mt19937_64 random(1);
  ReplicaGroup ep_group(Placement::Static(TopologyOf(8, 8, 4)), GetParam(), 1 << 16);
  ep_group.Fill(random);
  EXPECT_THAT(ep_group.Carry(ReplicaFlow::kToPrimary), Each(absl::OkStatus()));
  EXPECT_THAT(ep_group.Carry(ReplicaFlow::kFromPrimary), Each(absl::OkStatus()));
  EXPECT_EQ(ep_group.CountWrong(), 0);
  EXPECT_EQ(ep_group.num_posts(), 0U);
}

TEST_P(ReplicaContractTest, SquaresCountAnExpertOnceWhereverItsPrimaryIs) {
  constexpr uint64_t kSeed = 78;
  std::mt19937 placements(kSeed);
  std::mt19937_64 random(kSeed);
  const auto sum = [](ReplicaGroup& ep_group) {
    std::vector<std::vector<double>> squares(8);
    const auto statuses = ep_group.Run([&](int32_t rank, EpGroupCall& call) {
      ExpertSquareSums sums;
      const auto summed = sums.Sum(ep_group.tensors(rank), call);
      if (summed.ok()) squares[static_cast<size_t>(rank)] = *summed;
      return summed.status();
    });
    EXPECT_THAT(statuses, Each(absl::OkStatus()));
    return std::vector(squares.begin(), squares.begin() + std::ssize(statuses));
  };
  for (const int32_t gpus : {1, 2, 5}) {
    // The smaller one takes the sums of two ranks at a time.
    for (const int64_t staging : {int64_t{1344}, int64_t{1} << 16}) {
      SCOPED_TRACE(absl::StrCat("seed ", kSeed, ", ", gpus, " GPUs, staging ", staging));
      const Topology topology = TopologyOf(4, 15, gpus);
      ReplicaGroup ep_group(RandomPlacement(placements, topology), GetParam(), staging);
      ep_group.Fill(random);
      EXPECT_THAT(sum(ep_group), Each(ep_group.SquaresPlainly()));
      EXPECT_EQ(ep_group.CountWrong(), 0);
      ReplicaGroup elsewhere(RandomPlacement(placements, topology), GetParam(), staging);
      elsewhere.Fill(random);
      elsewhere.FillPrimariesAs(ep_group);
      EXPECT_THAT(sum(elsewhere), Each(ep_group.SquaresPlainly()));
    }
  }
}

TEST_P(ReplicaContractTest, ARankThatIsGoneEndsTheCallOnTheOthers) {
  const Placement placement = Placement::Static(TopologyOf(4, 16, 4));
  for (const ReplicaFlow flow : {ReplicaFlow::kToPrimary, ReplicaFlow::kFromPrimary}) {
    ReplicaGroup ep_group(placement, GetParam(), 1344);
    const absl::Time began = absl::Now();
    const auto results = ep_group.Carry(flow, /*absent=*/2);
    EXPECT_LT(absl::Now() - began, kPatience) << "they did not wait for the deadline";
    for (int32_t rank = 0; rank < 4; ++rank) {
      if (rank == 2) continue;
      EXPECT_THAT(results[static_cast<size_t>(rank)].code(),
                  AnyOf(absl::StatusCode::kUnavailable, absl::StatusCode::kFailedPrecondition,
                        absl::StatusCode::kAborted))
          << results[static_cast<size_t>(rank)];
    }
  }
}

}  // namespace eplb
