// The body of OwnQuotas for one expert: which of its slots take the tokens of one rank. A rank
// finds its own part in one pass over the counts of all ranks.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace eplb {

// The GPUs and slots of an EP group as Topology has them, and one of its ranks.
struct SourcePlace {
  int32_t num_gpus = 0;
  int32_t num_slots = 0;
  int32_t gpus_of_node = 0;  // divides num_gpus
  int32_t source = 0;        // rank g has GPU g
};

// Tokens that wait for slots, and those of lower ranks, which are served first.
template <class Token>
struct WaitingTokens {
  Token ahead = 0;
  Token mine = 0;

  // Returns the tokens of this rank that a slot with room takes.
  EPLB_HOST_DEVICE Token Fill(Token room) {
    const Token skipped = ahead < room ? ahead : room;
    const Token taken = mine < room - skipped ? mine : room - skipped;
    ahead -= skipped;
    mine -= taken;
    return taken;
  }
};

// Tokens of one expert, rank by rank. Four loads are under way at once.
class TokensByRank {
 public:
  // counts: those of rank 0, the next ones are `stride` apart.
  EPLB_HOST_DEVICE TokensByRank(const int64_t* counts, int64_t stride, int32_t num_ranks)
      : next_(counts), stride_(stride), left_(num_ranks) {
    for (int32_t i = 0; i < 4; ++i) (void)Next();
  }
  EPLB_HOST_DEVICE int64_t Next() {
    const int64_t tokens = first_;
    first_ = second_;
    second_ = third_;
    third_ = fourth_;
    if (left_-- > 0) {
      fourth_ = *next_;
      next_ += stride_;
    }
    return tokens;
  }

 private:
  const int64_t* next_;
  int64_t stride_;
  int32_t left_;
  int64_t first_ = 0, second_ = 0, third_ = 0, fourth_ = 0;
};

// Takes the smaller of both from both, and returns it.
template <class Token>
EPLB_HOST_DEVICE Token TakeFrom(Token& tokens, Token& room) {
  const Token taken = tokens < room ? tokens : room;
  tokens -= taken;
  room -= taken;
  return taken;
}

// Writes the tokens of rank `place.source` to own[slot] for the slots of an expert. slots: rising.
// room: [S], the quotas; that of each of the slots is consumed.
template <class Token, class Slot>
EPLB_HOST_DEVICE void FillOwn(const SourcePlace& place, TokensByRank tokens_by_rank,
                              const Slot* slots, int32_t num_slots, Token* room, int64_t* own) {
  const int32_t slots_of_gpu = place.num_slots / place.num_gpus;
  const int32_t larger_gpus = place.num_slots % place.num_gpus;
  WaitingTokens<Token> waiting;
  Token elsewhere = 0;   // tokens that the nodes of lower ranks have no room for
  int32_t next = 0;      // first of the slots that no GPU so far has
  int32_t end_slot = 0;  // end of the GPU's slots
  EPLB_ROLLED
  for (int32_t gpu = 0; gpu < place.num_gpus;) {
    const int32_t end_gpu = gpu + place.gpus_of_node;
    const bool is_home = place.source >= gpu && place.source < end_gpu;
    const int32_t first = next;
    Token of_node = 0;  // tokens that their own GPU has no room for
    EPLB_ROLLED
    for (; gpu < end_gpu; ++gpu) {
      auto tokens = static_cast<Token>(tokens_by_rank.Next());
      end_slot += slots_of_gpu + (gpu < larger_gpus ? 1 : 0);
      EPLB_ROLLED
      for (; next < num_slots && slots[next] < end_slot; ++next) {
        const Token taken = TakeFrom(tokens, room[slots[next]]);
        own[slots[next]] = gpu == place.source ? taken : 0;
      }
      if (gpu == place.source) waiting = {.ahead = of_node, .mine = tokens};
      of_node += tokens;
    }
    EPLB_ROLLED
    for (int32_t i = first; i < next; ++i) {
      if (is_home) own[slots[i]] += waiting.Fill(room[slots[i]]);
      TakeFrom(of_node, room[slots[i]]);
    }
    if (is_home) waiting.ahead += elsewhere;
    elsewhere += of_node;
  }
  EPLB_ROLLED
  for (int32_t i = 0; i < num_slots; ++i) own[slots[i]] += waiting.Fill(room[slots[i]]);
}

}  // namespace eplb
