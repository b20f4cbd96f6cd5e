// Quotas of slots from a split: the tokens of each part, shared among the slots that hold it.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "placement/split/split_team.h"

namespace eplb {

// Writes the quotas of all slots [S]. The slots of an expert on one GPU take equal shares. Members
// of the team 0..num_threads-1 call both functions, with a barrier between.
template <class Layer, class Token>
EPLB_HOST_DEVICE void WriteQuotas(const Layer& layer, const Token* counts, const Token* part_tokens,
                                  Token* quotas, int32_t thread, int32_t num_threads) {
  EPLB_ROLLED
  for (int32_t slot = thread; slot < layer.num_slots; slot += num_threads) {
    const int32_t source = layer.slot_source[slot];
    const Token* const from = (source & 1) != 0 ? part_tokens : counts;  // without a branch
    quotas[slot] = from[source >> 1];
  }
}
template <class Layer, class Token>
EPLB_HOST_DEVICE void ShareQuotas(const Layer& layer, Token* quotas, int32_t thread,
                                  int32_t num_threads) {
  EPLB_ROLLED
  for (int32_t i = thread; i < layer.num_shared; i += num_threads) {
    const auto among = static_cast<Token>(layer.shared_among[i]);
    Token& quota = quotas[layer.shared_slot[i]];
    const Token tokens = among == 0 ? 0 : quota;
    const Token each = among == 0 ? 0 : Quotient(tokens, among);
    quota = each + (static_cast<Token>(layer.shared_place[i]) < tokens - each * among ? 1 : 0);
  }
}

}  // namespace eplb
