// The bodies of what the GPU exchanges with the CPU about a split, in memory that both share. With
// a splitter on the CPU a block of the GPU writes the counts of all ranks and waits for the rank's
// own quotas. After a deadline it goes on without quotas, so that each choice draws its slot. If a
// kernel split the batch, the block notes its quotas for the CPU's figures.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/host_device.h"
#include "base/nanosecond_clock.h"

namespace eplb::cuda {

// Before a barrier after which other threads store: their stores follow this thread's. After a
// poll: what follows sees all that preceded the store whose value the poll returned.
EPLB_HOST_DEVICE inline void FenceShared() {
#ifdef __CUDA_ARCH__
  __threadfence_system();
#endif
}

// Words that the GPU and the CPU share. A load is a poll and a fence.
EPLB_HOST_DEVICE inline int64_t PollShared(const int64_t* word) {
#ifdef __CUDA_ARCH__
  return *static_cast<const volatile int64_t*>(word);
#else
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#endif
}
EPLB_HOST_DEVICE inline int64_t LoadShared(const int64_t* word) {
  const int64_t value = PollShared(word);
  FenceShared();
  return value;
}
EPLB_HOST_DEVICE inline void StoreShared(int64_t* word, int64_t value) {
#ifdef __CUDA_ARCH__
  __threadfence_system();
  *static_cast<volatile int64_t*>(word) = value;
#else
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
#endif
}

// Stores one of many words, which a StoreShared of any thread after a barrier publishes.
EPLB_HOST_DEVICE inline void StoreCount(int64_t* word, int64_t value) {
#ifdef __CUDA_ARCH__
  *word = value;
#else
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
#endif
}

// Loads one of many words, which are seen after a LoadShared of any thread and a barrier.
EPLB_HOST_DEVICE inline int64_t LoadQuota(const int64_t* word) {
#ifdef __CUDA_ARCH__
  return *static_cast<const volatile int64_t*>(word);
#else
  return __atomic_load_n(word, __ATOMIC_RELAXED);
#endif
}

// Memory of one layer that the GPU and the CPU share. The arrays of counts and quotas are read and
// written by the loads and stores above, because a late answer meets the next batch.
struct SplitMailbox {
  int64_t* counts = nullptr;  // [num_counts], written by the kernel
  int64_t* tables = nullptr;  // [1], number of the tables that route the batch in `counts`
  int64_t* drawn = nullptr;   // [1], see SplitExchangeArgs, before the batch in `counts`
  int64_t* asked = nullptr;   // [1], number of the batch in `counts`, written after them
  int64_t* late = nullptr;    // [1], number of batches without an answer, written by the kernel
  int64_t* done = nullptr;    // [1], number of the last batch that waits no more, after `late`
  int64_t* answer = nullptr;  // [num_slots], own quotas, written by the splitter
  // [1], number of the batch in `answer`, written after it, or kNoAnswers.
  int64_t* answered = nullptr;
};
inline constexpr int64_t kNoAnswers = -1;  // the splitter has ended

struct SplitExchangeArgs {
  // In the memory of the kernel.
  const int64_t* gathered = nullptr;  // [num_counts], counts of all ranks
  const int32_t* tables = nullptr;    // [1], number of the tables that route the batch
  const int64_t* drawn = nullptr;     // [1], choices of earlier batches that drew their slots
  int64_t* number = nullptr;          // [1], number of the last batch, raised by 1
  int64_t* own = nullptr;             // [num_slots], set: the answer, or -1 if it is late
  SplitMailbox mailbox;
  int32_t num_counts = 0;
  int32_t num_slots = 0;
  // Longest wait for the answer. A poll takes longer than a nanosecond, so that this is also the
  // largest number of polls if the clock stands still.
  int64_t deadline_ns = 0;
};
static_assert(std::is_trivially_copyable_v<SplitExchangeArgs>);

EPLB_HOST_DEVICE inline bool AwaitAnswer(const SplitExchangeArgs& args, int64_t number) {
  const int64_t start = NowInNanoseconds();
  for (int64_t polls = 0; polls <= args.deadline_ns; ++polls) {
    const int64_t answered = PollShared(args.mailbox.answered);
    if (answered == number) {
      FenceShared();
      return true;
    }
    if (answered == kNoAnswers || NowInNanoseconds() - start > args.deadline_ns) return false;
  }
  return false;
}

inline constexpr int64_t kNoQuota = -1;  // see QuotaRouteArgs::own

// Words of a note in the memory that the GPU and the CPU share. Batch b of the layer, from 0, has
// entry b % kNotedBatches. Its reader has it whole if kBatches was above b before, and if kBegun is
// at most b + kNotedBatches afterwards.
enum SplitNoteWord {
  kBegun,    // batches of the layer whose entries are written or being written
  kBatches,  // batches of the layer
  kRefused,  // batches that were refused
  kDrawn,    // choices of earlier batches that drew their slots
  kNewest,   // the newest batch that was not refused, plus 1
  kNoted,    // its number among the batches of all layers
  kEntries   // [kNotedBatches, 1 + num_slots]
};
inline constexpr int64_t kNotedBatches = 64;

// Entry of a batch: the number of the tables that split it, or 0 if it was refused, and [num_slots]
// quotas.
EPLB_HOST_DEVICE inline int64_t* NoteEntry(int64_t* note, int64_t batch, int32_t num_slots) {
  return note + kEntries + batch % kNotedBatches * (1 + num_slots);
}
EPLB_HOST_DEVICE inline int64_t NoteWords(int32_t num_slots) {
  return kEntries + kNotedBatches * (1 + num_slots);
}

struct SplitNoteArgs {
  // In the memory of the kernel.
  const int64_t* quotas = nullptr;   // [num_slots]
  const int32_t* refused = nullptr;  // [1], SplitArgs::refused
  const int64_t* tables = nullptr;   // [1], number of the tables
  const int64_t* drawn = nullptr;    // [1], see kDrawn
  int64_t* number = nullptr;         // [1], number of the last batch of any layer, raised by 1
  int64_t* counts = nullptr;         // [2], batches and refused batches of the layer, raised by 1
  int64_t* note = nullptr;           // [NoteWords(num_slots)], shared
  int32_t num_slots = 0;
};
static_assert(std::is_trivially_copyable_v<SplitNoteArgs>);

// Block: leader(); ForEach(count, work), after which all threads see what each wrote; Share(value),
// the value of the leader for all threads, after which they store; Raise(word), by one thread.
template <class Block>
EPLB_HOST_DEVICE void NoteSplit(const SplitNoteArgs& args, const Block& block) {
  const bool is_split = *args.refused < 0;
  int64_t number = 0;
  if (block.leader()) {
    StoreShared(args.note + kBegun, ++args.counts[0]);
    if (is_split) number = block.Raise(args.number);
    if (!is_split) StoreShared(args.note + kRefused, ++args.counts[1]);
    StoreShared(args.note + kDrawn, *args.drawn);
    FenceShared();
  }
  const int32_t num_quotas = block.Share(is_split) ? args.num_slots : 0;
  const int64_t batches = args.counts[0];
  int64_t* const entry = NoteEntry(args.note, batches - 1, args.num_slots);
  block.ForEach(num_quotas, [&](int32_t i) { StoreCount(entry + 1 + i, args.quotas[i]); });
  if (!block.leader()) return;
  StoreShared(entry, is_split ? *args.tables : 0);
  if (is_split) {
    StoreShared(args.note + kNewest, batches);
    StoreShared(args.note + kNoted, number);
  }
  StoreShared(args.note + kBatches, batches);
}

// Block: as above.
template <class Block>
EPLB_HOST_DEVICE void ExchangeSplit(const SplitExchangeArgs& args, const Block& block) {
  const SplitMailbox& mailbox = args.mailbox;
  const int64_t number = *args.number + 1;
  block.ForEach(args.num_counts,
                [&](int32_t i) { StoreCount(mailbox.counts + i, args.gathered[i]); });
  bool in_time = false;
  if (block.leader()) {
    *args.number = number;
    StoreCount(mailbox.tables, *args.tables);
    StoreCount(mailbox.drawn, *args.drawn);
    StoreShared(mailbox.asked, number);
    in_time = AwaitAnswer(args, number);
    if (!in_time) StoreShared(mailbox.late, LoadShared(mailbox.late) + 1);
    StoreShared(mailbox.done, number);
  }
  in_time = block.Share(in_time);
  block.ForEach(args.num_slots, [&](int32_t slot) {
    args.own[slot] = in_time ? LoadQuota(mailbox.answer + slot) : kNoQuota;
  });
}

}  // namespace eplb::cuda
