// Calls on a router's choices: eplb_count_tokens, eplb_turn_tokens, eplb_turn_tokens_on_gpu,
// eplb_client_route_tokens, eplb_client_route_split, eplb_client_count_for and
// eplb_client_route_from.
#include "client/tokens.h"

#include <cstdint>

#include "base/errors.h"
#include "client/c/client_handle.h"
#include "client/c/eplb.h"

namespace eplb::c {
namespace {

static_assert(EPLB_INT32 == static_cast<int>(cuda::ExpertIdType::kInt32) &&
              EPLB_INT64 == static_cast<int>(cuda::ExpertIdType::kInt64));

// errors: InvalidArgument naming the field; client/tokens.h checks what the counters are.
absl::StatusOr<cuda::CountArgs> ReadChoices(const eplb_choices* pointer) {
  EPLB_ASSIGN_OR_RETURN(const eplb_choices given, ReadStruct("choices", pointer));
  if (given.id_type != EPLB_INT32 && given.id_type != EPLB_INT64) {
    return InvalidInput("choices.id_type is ", given.id_type, ", expected an eplb_id_type");
  }
  if (given.reserved != 0) return InvalidInput("choices.reserved is not 0");
  int64_t* const counters = given.counters;
  const cuda::CountArgs choices{
      .expert_ids = given.expert_ids,
      .id_type = static_cast<cuda::ExpertIdType>(given.id_type),
      .is_padding = given.is_padding,
      .num_tokens = given.num_tokens,
      .top_k = given.top_k,
      .num_experts = given.num_experts,
      .counts = counters,
      .out_of_range = counters == nullptr ? nullptr : counters + given.num_experts};
  EPLB_RETURN_IF_ERROR(cuda::CheckChoices(choices));
  return choices;
}

}  // namespace
}  // namespace eplb::c

extern "C" {

int32_t eplb_count_tokens(const eplb_choices* choices, void* stream) noexcept {
  return eplb::c::CatchAll([&]() -> absl::Status {
    EPLB_ASSIGN_OR_RETURN(const eplb::cuda::CountArgs read, eplb::c::ReadChoices(choices));
    return eplb::CountTokens(read, stream);
  });
}

int32_t eplb_turn_tokens(const eplb_choices* choices, const int64_t* slot_of_expert,
                         void* slots) noexcept {
  return eplb::c::CatchAll([&]() -> absl::Status {
    EPLB_ASSIGN_OR_RETURN(const eplb::cuda::CountArgs read, eplb::c::ReadChoices(choices));
    return eplb::TurnTokens({.choices = read, .slot_of_expert = slot_of_expert, .slots = slots});
  });
}

int32_t eplb_turn_tokens_on_gpu(const eplb_choices* choices, const int64_t* slot_of_expert,
                                const int64_t* weight, void* slots, int32_t device,
                                void* stream) noexcept {
  return eplb::c::CatchAll([&]() -> absl::Status {
    EPLB_ASSIGN_OR_RETURN(const eplb::cuda::CountArgs read, eplb::c::ReadChoices(choices));
    const eplb::cuda::TurnArgs turn{
        .choices = read, .slot_of_expert = slot_of_expert, .slots = slots, .weight = weight};
    return eplb::TurnTokensOnGpu(turn, device, stream);
  });
}

int32_t eplb_client_route_tokens(const eplb_client* client, int32_t layer,
                                 const eplb_choices* choices, int64_t first_token, void* slots,
                                 void* stream) noexcept {
  return eplb::c::Read(client, "route_tokens", [&](const eplb::Client& connected) -> absl::Status {
    EPLB_ASSIGN_OR_RETURN(const eplb::cuda::CountArgs read, eplb::c::ReadChoices(choices));
    return eplb::RouteTokens(connected.device_tables(), read,
                             {.layer = layer, .first_token = first_token, .slots = slots}, stream);
  });
}

int32_t eplb_client_route_split(const eplb_client* client, int32_t layer,
                                const eplb_choices* choices, const eplb_split* split,
                                void* slots) noexcept {
  return eplb::c::Read(client, "route_split", [&](const eplb::Client& connected) -> absl::Status {
    EPLB_ASSIGN_OR_RETURN(const eplb::cuda::CountArgs read, eplb::c::ReadChoices(choices));
    EPLB_ASSIGN_OR_RETURN(const eplb_split given, eplb::c::ReadStruct("split", split));
    EPLB_RETURN_IF_ERROR(eplb::c::CheckNotNull("split.own", given.own));
    if (given.num_slots < 0) {
      return eplb::InvalidInput("split.num_slots is ", given.num_slots, ", expected at least 0");
    }
    return eplb::RouteBySplit(connected.placement(), read,
                              {.layer = layer,
                               .version = given.version,
                               .own = {given.own, static_cast<size_t>(given.num_slots)},
                               .slots = slots});
  });
}

int32_t eplb_client_count_for(const eplb_client* client, int32_t layer, const eplb_choices* choices,
                              int64_t* row, void* stream) noexcept {
  return eplb::c::Read(client, "count_for", [&](eplb::Client& connected) -> absl::Status {
    EPLB_ASSIGN_OR_RETURN(const eplb::cuda::CountArgs read, eplb::c::ReadChoices(choices));
    return connected.CountFor(layer, read, row, stream);
  });
}

int32_t eplb_client_route_from(const eplb_client* client, int32_t layer, const int64_t* gathered,
                               void* slots, void* stream) noexcept {
  return eplb::c::Read(client, "route_from", [&](eplb::Client& connected) {
    return connected.RouteFrom(layer, gathered, slots, stream);
  });
}

}  // extern "C"
