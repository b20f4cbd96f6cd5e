#include "tests/client/oracle/expert_slots.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

constexpr size_t kOptimizer = 3 * kParameters;  // floats of a slot

template <class Value>
void Append(std::string& bytes, std::span<const Value> values) {
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

}  // namespace

int32_t ExpertIn(const PlacementView& placement, int32_t layer, int32_t local_slot) {
  const int32_t cell = layer * placement.num_slots + placement.first_local_slot + local_slot;
  return placement.physical_to_logical_map[static_cast<size_t>(cell)];
}

ExpertSlots::ExpertSlots(int32_t num_local_slots)
    : num_local_slots_(num_local_slots), layers_(kMoeLayers) {
  const auto slots = static_cast<size_t>(num_local_slots);
  for (Layer& layer : layers_) {
    layer.first_weight.resize(slots * kMatrix);
    layer.second_weight.resize(slots * kMatrix);
    layer.optimizer.resize(slots * kOptimizer);
    layer.num_updates.resize(slots);
    layer.gain.resize(slots);
  }
}

ExpertRow ExpertSlots::At(int32_t layer, int32_t local_slot) {
  Layer& memory = layers_[static_cast<size_t>(layer)];
  const auto slot = static_cast<size_t>(local_slot);
  const std::span<float> optimizer =
      std::span(memory.optimizer).subspan(slot * kOptimizer, kOptimizer);
  return {.first_weight = std::span(memory.first_weight).subspan(slot * kMatrix, kMatrix),
          .second_weight = std::span(memory.second_weight).subspan(slot * kMatrix, kMatrix),
          .master = optimizer.subspan(0, kParameters),
          .first_moment = optimizer.subspan(kParameters, kParameters),
          .second_moment = optimizer.subspan(2 * kParameters, kParameters),
          .num_updates = &memory.num_updates[slot],
          .gain = &memory.gain[slot]};
}

void ExpertSlots::Initialise(const PlacementView& placement) {
  for (int32_t layer = 0; layer < kMoeLayers; ++layer) {
    for (int32_t slot = 0; slot < num_local_slots_; ++slot) {
      InitialiseExpert(layer, ExpertIn(placement, layer, slot), At(layer, slot));
    }
  }
}

std::vector<ExpertTensorView> ExpertSlots::Tensors(std::string_view forgotten) {
  std::vector<ExpertTensorView> tensors;
  const auto add = [&](std::string_view name, int32_t layer, Role role, auto first_row,
                       size_t stride) {
    if (name == forgotten) return;
    constexpr size_t kElement = sizeof(first_row[0]);
    ExpertTensorView view;
    view.name = absl::StrCat("layers.", layer, ".", std::string(name));
    view.layer = layer;
    view.role = role;
    view.base = first_row.data();
    view.num_rows = num_local_slots_;
    view.row_bytes = static_cast<int64_t>(first_row.size() * kElement);
    view.row_stride = static_cast<int64_t>(stride * kElement);
    tensors.push_back(view);
  };
  for (int32_t layer = 0; layer < kMoeLayers; ++layer) {
    const ExpertRow row = At(layer, 0);
    add("first_weight", layer, Role::kWeight, row.first_weight, kMatrix);
    add("second_weight", layer, Role::kWeight, row.second_weight, kMatrix);
    add("master", layer, Role::kState, row.master, kOptimizer);
    add("first_moment", layer, Role::kState, row.first_moment, kOptimizer);
    add("second_moment", layer, Role::kState, row.second_moment, kOptimizer);
    add("num_updates", layer, Role::kState, std::span(row.num_updates, 1), 1);
    if (forgotten != "gain") tensors.push_back(Gain(layer));
  }
  return tensors;
}

ExpertTensorView ExpertSlots::Gain(int32_t layer) {
  ExpertTensorView view;
  view.name = absl::StrCat("layers.", layer, ".gain");
  view.layer = layer;
  view.role = Role::kDerived;
  view.rebuild = [this](int32_t of, std::span<const int32_t> local_slots) {
    for (const int32_t slot : local_slots) RebuildGain(At(of, slot));
    return absl::OkStatus();
  };
  return view;
}

uint64_t ExpertSlots::TrainACopy(int32_t layer, int32_t local_slot) {
  const ExpertRow expert = At(layer, local_slot);
  ExpertSlots copy(1);
  const ExpertRow row = copy.At(layer, 0);
  std::ranges::copy(expert.first_weight, row.first_weight.begin());
  std::ranges::copy(expert.second_weight, row.second_weight.begin());
  std::ranges::copy(expert.master, row.master.begin());
  std::ranges::copy(expert.first_moment, row.first_moment.begin());
  std::ranges::copy(expert.second_moment, row.second_moment.begin());
  *row.num_updates = *expert.num_updates;
  *row.gain = *expert.gain;
  const TokenVector input = InputOf(0, 0);
  HiddenVector hidden;
  const TokenVector output = Forward(row, input, hidden);
  std::vector<float> gradient(kParameters);
  Backward(row, input, hidden, output, gradient);
  Update(row, gradient);
  std::string bytes = copy.Bytes(layer, 0);
  Append<float>(bytes, output);
  return std::hash<std::string>()(bytes);
}

std::string ExpertSlots::Bytes(int32_t layer, int32_t local_slot) {
  const ExpertRow row = At(layer, local_slot);
  std::string bytes;
  Append<uint16_t>(bytes, row.first_weight);
  Append<uint16_t>(bytes, row.second_weight);
  Append<float>(bytes, row.master);
  Append<float>(bytes, row.first_moment);
  Append<float>(bytes, row.second_moment);
  Append<float>(bytes, std::span(row.gain, 1));
  Append<int64_t>(bytes, std::span(row.num_updates, 1));
  return bytes;
}

}  // namespace eplb
