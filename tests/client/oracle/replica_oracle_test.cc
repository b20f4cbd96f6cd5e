// Training with replicas is judged by training without: the same experts, each in one place, with
// the same tokens, gradient clipping and momentum.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "client/client.h"
#include "client/client_impl.h"
#include "tests/client/oracle/rank_barrier.h"
#include "tests/client/rows/control/world.h"
#include "tests/client/rows/expert_world.h"
#include "tests/client/session/proposals.h"

namespace eplb {
namespace {

constexpr int32_t kLayers = 2;
constexpr int32_t kExperts = 4;
constexpr int32_t kSlots = 10;
constexpr int32_t kRanks = 3;
constexpr size_t kWeights = 6;
constexpr int32_t kSteps = 40;
constexpr int32_t kMoveEvery = 8;
constexpr int32_t kReplicaTokens = 30;
constexpr double kClip = 0.5;

using Row = std::array<double, kWeights>;

struct Expert {
  Row weight{};
  Row momentum{};
};

// Input and target that the layers are trained on.
struct Token {
  Row input{};
  double target = 0;
  int32_t expert = 0;
};
Token TokenAt(int32_t step, int32_t layer, int32_t index) {
  std::mt19937_64 random(static_cast<uint64_t>((step * kLayers + layer) * kReplicaTokens + index));
  std::normal_distribution<double> normal;
  Token token;
  for (double& value : token.input) value = normal(random);
  token.target = std::tanh(token.input[0] - token.input[1]);
  token.expert = static_cast<int32_t>(random() % 7 % kExperts);  // some have more than others
  return token;
}

Row InitialWeight(int32_t layer, int32_t expert) { return TokenAt(-1, layer, expert).input; }

void AddGradient(const Row& weight, const Token& token, Row& gradient) {
  double sum = 0;
  for (size_t i = 0; i < kWeights; ++i) sum += weight[i] * token.input[i];
  const double output = std::tanh(sum);
  for (size_t i = 0; i < kWeights; ++i) {
    gradient[i] += (output - token.target) * (1 - output * output) * token.input[i];
  }
}

void UpdateExpert(const Row& gradient, double norm, Expert& expert) {
  const double scale = std::min(1.0, kClip / norm);
  for (size_t i = 0; i < kWeights; ++i) {
    expert.momentum[i] = 0.9 * expert.momentum[i] + scale * gradient[i];
    expert.weight[i] -= 0.05 * expert.momentum[i];
  }
}

using Layers = std::vector<std::vector<Expert>>;  // [layers][experts]

// One place for each expert, no ranks.
Layers TrainWithoutReplicas() {
  Layers layers(kLayers, std::vector<Expert>(kExperts));
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (int32_t expert = 0; expert < kExperts; ++expert) {
      layers[layer][expert].weight = InitialWeight(layer, expert);
    }
  }
  for (int32_t step = 0; step < kSteps; ++step) {
    std::vector<std::vector<Row>> gradients(kLayers, std::vector<Row>(kExperts));
    double squares = 0;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for (int32_t index = 0; index < kReplicaTokens; ++index) {
        const Token token = TokenAt(step, layer, index);
        AddGradient(layers[layer][token.expert].weight, token, gradients[layer][token.expert]);
      }
      for (const Row& gradient : gradients[layer]) {
        for (const double value : gradient) squares += value * value;
      }
    }
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for (int32_t expert = 0; expert < kExperts; ++expert) {
        UpdateExpert(gradients[layer][expert], std::sqrt(squares), layers[layer][expert]);
      }
    }
  }
  return layers;
}

class ReplicaRank {
 public:
  ReplicaRank(std::unique_ptr<Client> client, StatePlacement state)
      : client_(std::move(client)),
        state_(state),
        slots_(static_cast<size_t>(client_->placement().num_local_slots)),
        experts_(kLayers, std::vector<Expert>(slots_)),
        gradients_(kLayers, std::vector<Row>(slots_)) {}

  Client& client() { return *client_; }
  absl::Status Register() {
    std::vector<ExpertTensorView> tensors;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      Expert* first = experts_[layer].data();
      for (const bool is_weight : {true, false}) {
        tensors.push_back({.name = absl::StrCat(layer, is_weight ? ".w" : ".m"),
                           .layer = layer,
                           .role = is_weight ? Role::kWeight : Role::kState,
                           .base = is_weight ? &first->weight : &first->momentum,
                           .num_rows = static_cast<int32_t>(slots_),
                           .row_bytes = sizeof(Row),
                           .row_stride = sizeof(Expert)});
      }
      for (size_t slot = 0; slot < slots_; ++slot) {
        experts_[layer][slot].weight = InitialWeight(layer, ExpertIn(layer, slot));
      }
    }
    return client_->RegisterExperts(tensors);
  }

  absl::Status Step(int32_t step) {
    std::vector<ReplicaRows> gradients;
    std::vector<ReplicaRows> weights;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      std::fill(gradients_[layer].begin(), gradients_[layer].end(), Row{});
      for (int32_t index = 0; index < kReplicaTokens; ++index) Train(step, layer, index);
      gradients.push_back(RowsOf("gradient", layer, gradients_[layer].data(), sizeof(Row)));
      weights.push_back(RowsOf("weight", layer, &experts_[layer][0].weight, sizeof(Expert)));
    }
    EPLB_RETURN_IF_ERROR(client_->ReduceGradients(gradients));
    EPLB_ASSIGN_OR_RETURN(const std::vector<double> squares, client_->ExpertSquares(gradients));
    double sum = 0;
    for (const double square : squares) sum += square;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for (size_t slot = 0; slot < slots_; ++slot) {
        if (state_ == StatePlacement::kWithPrimary && !IsPrimary(layer, slot)) continue;
        UpdateExpert(gradients_[layer][slot], std::sqrt(sum), experts_[layer][slot]);
      }
    }
    return state_ == StatePlacement::kWithPrimary ? client_->BroadcastWeights(weights)
                                                  : absl::OkStatus();
  }

  // The largest distance of a local replica from the run without any.
  double Distance(const Layers& expected) const {
    double most = 0;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for (size_t slot = 0; slot < slots_; ++slot) {
        const Row& weight = expected[layer][ExpertIn(layer, slot)].weight;
        for (size_t i = 0; i < kWeights; ++i) {
          most = std::max(most, std::abs(experts_[layer][slot].weight[i] - weight[i]));
        }
      }
    }
    return most;
  }

 private:
  int32_t SlotOf(size_t local) const {
    return client_->placement().first_local_slot + static_cast<int32_t>(local);
  }
  int32_t ExpertIn(int32_t layer, size_t local) const {
    return client_->placement().physical_to_logical_map[layer * kSlots + SlotOf(local)];
  }
  std::span<const int32_t> ReplicasOf(int32_t layer, int32_t expert) const {
    const PlacementView& view = client_->placement();
    const auto cell = static_cast<size_t>(layer * kExperts + expert);
    return view.logical_to_physical_map.subspan(
        cell * static_cast<size_t>(view.max_replicas),
        static_cast<size_t>(view.logical_replica_count[cell]));
  }
  bool IsPrimary(int32_t layer, size_t local) const {
    return ReplicasOf(layer, ExpertIn(layer, local))[0] == SlotOf(local);
  }

  // Tokens go round an expert's replicas; this rank trains those that come here.
  void Train(int32_t step, int32_t layer, int32_t index) {
    const Token token = TokenAt(step, layer, index);
    const std::span<const int32_t> replicas = ReplicasOf(layer, token.expert);
    const auto local =
        static_cast<size_t>(replicas[static_cast<size_t>(index) % replicas.size()] - SlotOf(0));
    if (local < slots_) {
      AddGradient(experts_[layer][local].weight, token, gradients_[layer][local]);
    }
  }

  ReplicaRows RowsOf(const char* name, int32_t layer, void* base, size_t stride) const {
    return {.name = absl::StrCat(layer, ".", name),
            .layer = layer,
            .type = GradientType::kFloat64,
            .base = base,
            .num_rows = static_cast<int32_t>(slots_),
            .row_bytes = sizeof(Row),
            .row_stride = static_cast<int64_t>(stride)};
  }

  const std::unique_ptr<Client> client_;
  const StatePlacement state_;
  const size_t slots_;
  Layers experts_;                           // [layers][slots]
  std::vector<std::vector<Row>> gradients_;  // [layers][slots]
};

class ReplicaOracleTest : public ::testing::TestWithParam<StatePlacement> {
 protected:
  static ClientOptions OptionsOf(int32_t rank) {
    ClientOptions options;
    options.run_id = "run-0";
    options.rank = rank;
    options.world_size = kRanks;
    options.num_layers = kLayers;
    options.num_experts = kExperts;
    options.num_slots = kSlots;
    options.num_gpus = kRanks;
    options.vote_every = 2;
    options.state_placement = GetParam();
    options.transport = "host";
    options.vote_deadline = absl::Seconds(30);
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, ReplicaOracleTest,
                         ::testing::Values(StatePlacement::kWithPrimary,
                                           StatePlacement::kEveryReplica),
                         [](const auto& of) {
                           return of.param == StatePlacement::kWithPrimary ? "WithPrimary"
                                                                           : "EveryReplica";
                         });

TEST_P(ReplicaOracleTest, ReplicasThatMoveTrainAsOneExpertThatStays) {
  const Layers expected = TrainWithoutReplicas();
  const Topology topology =
      Topology::Make(
          {.num_layers = kLayers, .num_experts = kExperts, .num_slots = kSlots, .num_gpus = kRanks})
          .value();
  std::mt19937 random(20261122);
  std::vector<Placement> placements = {Placement::Static(topology)};
  while (placements.size() <= kSteps / kMoveEvery) {
    placements.push_back(RandomPlacement(random, topology));
  }
  std::vector<AllGather> all_gathers = MakeThreadAllGathers(kRanks);
  RankBarrier barrier(kRanks);
  std::vector<double> distances(kRanks, 1);
  std::vector<int32_t> switches(kRanks);
  RunRanks(kRanks, [&](int32_t r) {
    auto parts = PrepareClient(OptionsOf(r), all_gathers[r]);
    ASSERT_TRUE(parts.ok()) << parts.status();
    auto impl = std::make_unique<Client::Impl>(*std::move(parts));
    Client::Impl& told = *impl;
    ReplicaRank rank(std::make_unique<Client>(std::move(impl)), GetParam());
    ASSERT_TRUE(rank.Register().ok());
    for (int32_t step = 0; step < kSteps; ++step) {
      const absl::Status trained = rank.Step(step);
      ASSERT_TRUE(trained.ok()) << trained;
      if (step % kMoveEvery == kMoveEvery - 1) {
        const int32_t version = switches[r];
        told.Tell(ProposeTo(Running(version, placements[version]), placements[version + 1],
                            version + 1, /*term=*/1));
        barrier.Meet();  // so that all are PREPARED
      }
      const auto boundary = rank.client().StepBoundary(step);
      ASSERT_TRUE(boundary.ok()) << boundary.status();
      switches[r] += boundary->switched ? 1 : 0;
    }
    distances[r] = rank.Distance(expected);
    rank.client().Close("finished");
  });
  EXPECT_THAT(switches, ::testing::Each(kSteps / kMoveEvery));
  EXPECT_THAT(distances, ::testing::Each(::testing::Le(1e-10)));
}

TEST(ReplicaOracleSelfTest, TheModelLearns) {
  double before = 0;
  double after = 0;
  const Layers trained = TrainWithoutReplicas();
  for (int32_t index = 0; index < kReplicaTokens; ++index) {
    const Token token = TokenAt(kSteps, 0, index);
    const auto miss = [&](const Row& weight) {
      double sum = 0;
      for (size_t i = 0; i < kWeights; ++i) sum += weight[i] * token.input[i];
      return std::pow(std::tanh(sum) - token.target, 2);
    };
    before += miss(InitialWeight(0, token.expert));
    after += miss(trained[0][token.expert].weight);
  }
  EXPECT_LT(after, before / 2);
}

}  // namespace
}  // namespace eplb
