// Computes the state of every expert from a hash, and computes it again to verify every byte.
#include "deploy/examples/replay_trainer/expert_state.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb {
namespace {

constexpr float kLearningRate = 1e-3f;
constexpr float kBeta1 = 0.9f;
constexpr float kBeta2 = 0.999f;
constexpr float kEpsilon = 1e-8f;

// A cheap integer mix (the finaliser of MurmurHash3); vectorises.
uint32_t Mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  x *= 0xc2b2ae35u;
  x ^= x >> 16;
  return x;
}

uint32_t Seed(int32_t layer, int32_t expert, int64_t step) {
  const uint32_t place = Mix(static_cast<uint32_t>(layer) * 65537u + static_cast<uint32_t>(expert));
  return Mix(place ^ static_cast<uint32_t>(step + 1));
}

// A number in [-1, 1) for parameter `i`.
float Draw(uint32_t seed, uint32_t i) {
  return static_cast<float>(static_cast<int32_t>(Mix(seed ^ (i * 0x9e3779b9u)))) * 0x1p-31f;
}

// Round to nearest, ties to even; the values here are finite.
uint16_t ToBfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The expert in a local slot.
int32_t LocalExpert(const PlacementView& placement, int32_t layer, int32_t local_slot) {
  const int64_t cell =
      int64_t{layer} * placement.num_slots + placement.first_local_slot + local_slot;
  return placement.physical_to_logical_map[static_cast<size_t>(cell)];
}

struct TensorKind {
  const char* name;
  Role role;
  size_t element_bytes;
};

// Tensors of an expert, in the order of ExpertState's blocks.
constexpr TensorKind kTensors[] = {{"weight", Role::kWeight, sizeof(uint16_t)},
                                   {"master", Role::kState, sizeof(float)},
                                   {"first_moment", Role::kState, sizeof(float)},
                                   {"second_moment", Role::kState, sizeof(float)}};

template <class Value>
std::span<Value> As(std::span<std::byte> row) {
  return {reinterpret_cast<Value*>(row.data()), row.size() / sizeof(Value)};
}

}  // namespace

ExpertState::ExpertState(const ExpertStateShape& shape) : shape_(shape) {
  const size_t slots =
      static_cast<size_t>(shape.num_layers) * static_cast<size_t>(shape.num_local_slots);
  for (size_t block = 0; block < blocks_.size(); ++block) {
    blocks_[block].resize(slots * RowBytes(block));
  }
}

size_t ExpertState::RowBytes(size_t block) const {
  return static_cast<size_t>(shape_.num_parameters) * kTensors[block].element_bytes;
}

std::span<std::byte> ExpertState::Row(size_t block, int32_t layer, int32_t local_slot) {
  const auto slot = static_cast<size_t>(int64_t{layer} * shape_.num_local_slots + local_slot);
  return std::span(blocks_[block]).subspan(slot * RowBytes(block), RowBytes(block));
}

ExpertState::Expert ExpertState::At(int32_t layer, int32_t local_slot) {
  return {As<uint16_t>(Row(0, layer, local_slot)), As<float>(Row(1, layer, local_slot)),
          As<float>(Row(2, layer, local_slot)), As<float>(Row(3, layer, local_slot))};
}

absl::Status ExpertState::PutOnDevice(int32_t device) {
  EPLB_ASSIGN_OR_RETURN(mirror_, DeviceMirror::Make(device, {blocks_.begin(), blocks_.end()}));
  return absl::OkStatus();
}

absl::Status ExpertState::Publish() {
  return mirror_ == nullptr ? absl::OkStatus() : mirror_->Upload();
}

absl::Status ExpertState::Fetch() {
  return mirror_ == nullptr ? absl::OkStatus() : mirror_->Download();
}

std::vector<ExpertTensorView> ExpertState::Tensors() {
  std::vector<ExpertTensorView> tensors;
  for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    for (size_t block = 0; block < blocks_.size(); ++block) {
      const std::span<std::byte> first = Row(block, layer, 0);
      std::byte* const base =
          mirror_ == nullptr ? first.data()
                             : mirror_->OnDevice(block) + (first.data() - blocks_[block].data());
      const auto row_bytes = static_cast<int64_t>(first.size());
      tensors.push_back({.name = absl::StrCat("layers.", layer, ".", kTensors[block].name),
                         .layer = layer,
                         .role = kTensors[block].role,
                         .base = base,
                         .num_rows = shape_.num_local_slots,
                         .row_bytes = row_bytes,
                         .row_stride = row_bytes});
    }
  }
  return tensors;
}

void ExpertState::InitialiseExpert(int32_t layer, int32_t expert, const Expert& memory) {
  const uint32_t seed = Seed(layer, expert, -1);
  for (size_t i = 0; i < memory.master.size(); ++i) {
    memory.master[i] = Draw(seed, static_cast<uint32_t>(i));
    memory.first_moment[i] = 0;
    memory.second_moment[i] = 0;
    memory.weight[i] = ToBfloat16(memory.master[i]);
  }
}

void ExpertState::UpdateExpert(int32_t layer, int32_t expert, int64_t step, const Expert& memory) {
  const uint32_t seed = Seed(layer, expert, step);
  for (size_t i = 0; i < memory.master.size(); ++i) {
    const float gradient = Draw(seed, static_cast<uint32_t>(i));
    const float first = kBeta1 * memory.first_moment[i] + (1 - kBeta1) * gradient;
    const float second = kBeta2 * memory.second_moment[i] + (1 - kBeta2) * gradient * gradient;
    memory.first_moment[i] = first;
    memory.second_moment[i] = second;
    memory.master[i] -= kLearningRate * first / (std::sqrt(second) + kEpsilon);
    memory.weight[i] = ToBfloat16(memory.master[i]);
  }
}

void ExpertState::Initialise(const PlacementView& placement) {
  for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    for (int32_t slot = 0; slot < shape_.num_local_slots; ++slot) {
      InitialiseExpert(layer, LocalExpert(placement, layer, slot), At(layer, slot));
    }
  }
}

void ExpertState::Update(int64_t step, const PlacementView& placement) {
  for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    for (int32_t slot = 0; slot < shape_.num_local_slots; ++slot) {
      UpdateExpert(layer, LocalExpert(placement, layer, slot), step, At(layer, slot));
    }
  }
}

absl::StatusOr<int64_t> ExpertState::Verify(int64_t last_step, const PlacementView& placement) {
  EPLB_RETURN_IF_ERROR(Fetch());
  ExpertState fresh(
      {.num_layers = 1, .num_local_slots = 1, .num_parameters = shape_.num_parameters});
  const Expert want = fresh.At(0, 0);
  int64_t bytes = 0;
  for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    for (int32_t slot = 0; slot < shape_.num_local_slots; ++slot) {
      const int32_t expert = LocalExpert(placement, layer, slot);
      InitialiseExpert(layer, expert, want);
      for (int64_t step = 0; step <= last_step; ++step) UpdateExpert(layer, expert, step, want);
      for (size_t block = 0; block < blocks_.size(); ++block) {
        const std::span<std::byte> have = Row(block, layer, slot), right = fresh.Row(block, 0, 0);
        if (std::memcmp(have.data(), right.data(), right.size()) != 0) {
          return DataLoss("after step ", last_step, ": layer ", layer, " slot ",
                          placement.first_local_slot + slot, " should hold expert ", expert,
                          ", its ", kTensors[block].name, " differs");
        }
        bytes += static_cast<int64_t>(right.size());
      }
    }
  }
  return bytes;
}

}  // namespace eplb
