// TurnTokens and TurnMask: the loops over ids and over the bytes of a mask.
#include "client/turns.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace eplb {
namespace {

constexpr int64_t kMaxMaskBytes = int64_t{1} << 40;

// By value: the compiler then keeps the fields in registers, although the loop writes memory.
template <class ExpertId>
void TurnAll(const cuda::CountArgs choices, const int64_t* slot_of_expert, void* slots) {
  const auto* const ids = static_cast<const ExpertId*>(choices.expert_ids);
  auto* const written = static_cast<ExpertId*>(slots);
  const auto num_experts = static_cast<uint64_t>(choices.num_experts);
  const int64_t num_choices = choices.num_tokens * choices.top_k;
  for (int64_t i = 0; i < num_choices; ++i) {
    const ExpertId id = ids[i];
    if (choices.is_padding != nullptr && choices.is_padding[cuda::TokenOfChoice(choices, i)] != 0) {
      written[i] = static_cast<ExpertId>(slot_of_expert[num_experts]);
      continue;
    }
    const uint64_t bin = std::min(static_cast<uint64_t>(int64_t{id}), num_experts);
    if (choices.counts != nullptr) ++choices.counts[bin];
    written[i] = bin < num_experts ? static_cast<ExpertId>(slot_of_expert[bin]) : id;
  }
}

// Turns one [num_experts] row of a mask, of which few bytes are set. REQUIRES: `turned` is zero.
void TurnSparseRow(const MaskArgs& mask, const uint8_t* chosen, const int64_t* slot_of_expert,
                   uint8_t* turned) {
  constexpr int32_t kWord = sizeof(uint64_t);
  const auto take = [&](int32_t expert) {
    if (mask.counts != nullptr) ++mask.counts[expert];
    turned[slot_of_expert[expert]] = chosen[expert];
  };
  int32_t expert = 0;
  for (; expert + kWord <= mask.num_experts; expert += kWord) {
    uint64_t word = 0;
    std::memcpy(&word, chosen + expert, kWord);
    if (word == 0) continue;
    for (int32_t i = expert; i < expert + kWord; ++i) {
      if (chosen[i] != 0) take(i);
    }
  }
  for (; expert < mask.num_experts; ++expert) {
    if (chosen[expert] != 0) take(expert);
  }
}

void TurnRow(const MaskArgs& mask, const uint8_t* chosen, const int64_t* slot_of_expert,
             uint8_t* turned) {
  for (int32_t expert = 0; expert < mask.num_experts; ++expert) {
    const uint8_t* const column = chosen + expert * mask.inner;
    std::copy_n(column, mask.inner, turned + slot_of_expert[expert] * mask.inner);
    if (mask.counts == nullptr) continue;
    mask.counts[expert] += mask.inner - std::count(column, column + mask.inner, uint8_t{0});
  }
}

absl::Status CheckMask(const MaskArgs& mask, const int64_t* slot_of_expert, const uint8_t* turned) {
  if (mask.num_experts < 1 || mask.outer < 0 || mask.inner < 0) {
    return absl::InvalidArgumentError(absl::StrCat("mask of [", mask.outer, ", ", mask.num_experts,
                                                   ", ", mask.inner,
                                                   "], expected at least [0, 1, 0]"));
  }
  if (slot_of_expert == nullptr) return absl::InvalidArgumentError("slot_of_expert is NULL");
  for (int32_t expert = 0; expert < mask.num_experts; ++expert) {
    if (slot_of_expert[expert] >= 0 && slot_of_expert[expert] < mask.num_experts) continue;
    return absl::InvalidArgumentError(absl::StrCat("slot_of_expert[", expert, "] is ",
                                                   slot_of_expert[expert], ", expected 0..",
                                                   mask.num_experts - 1));
  }
  if (mask.outer == 0 || mask.inner == 0) return absl::OkStatus();
  if (mask.inner > kMaxMaskBytes / mask.num_experts ||
      mask.outer > kMaxMaskBytes / mask.num_experts / mask.inner) {
    return absl::InvalidArgumentError(absl::StrCat("mask of [", mask.outer, ", ", mask.num_experts,
                                                   ", ", mask.inner, "] has more than ",
                                                   kMaxMaskBytes, " bytes"));
  }
  if (mask.chosen == nullptr) return absl::InvalidArgumentError("mask.chosen is NULL");
  if (turned == nullptr) return absl::InvalidArgumentError("turned is NULL");
  return absl::OkStatus();
}

}  // namespace

absl::Status TurnTokens(const cuda::CountArgs& choices, const int64_t* slot_of_expert,
                        void* slots) {
  EPLB_RETURN_IF_ERROR(cuda::CheckChoices(choices));
  if (slot_of_expert == nullptr) return absl::InvalidArgumentError("slot_of_expert is NULL");
  if (choices.num_tokens == 0) return absl::OkStatus();
  if (slots == nullptr) return absl::InvalidArgumentError("slots is NULL");
  if (choices.id_type == cuda::ExpertIdType::kInt64) {
    TurnAll<int64_t>(choices, slot_of_expert, slots);
  } else {
    TurnAll<int32_t>(choices, slot_of_expert, slots);
  }
  return absl::OkStatus();
}

absl::Status TurnMask(const MaskArgs& mask, const int64_t* slot_of_expert, uint8_t* turned) {
  EPLB_RETURN_IF_ERROR(CheckMask(mask, slot_of_expert, turned));
  const int64_t row = mask.num_experts * mask.inner;
  if (mask.outer == 0 || row == 0) return absl::OkStatus();
  if (mask.inner == 1) std::fill_n(turned, mask.outer * row, uint8_t{0});
  for (int64_t i = 0; i < mask.outer; ++i) {
    (mask.inner == 1 ? TurnSparseRow : TurnRow)(mask, mask.chosen + i * row, slot_of_expert,
                                                turned + i * row);
  }
  return absl::OkStatus();
}

}  // namespace eplb
