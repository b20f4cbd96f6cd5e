#include "cuda/split_exchange.h"

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb::cuda {
namespace {

// The block's work on one thread of the CPU.
struct OneThreadOfHost {
  static constexpr bool leader() { return true; }
  static bool Share(bool value) { return value; }
  static int64_t Raise(int64_t* word) { return ++*word; }
  template <class Work>
  void ForEach(int32_t count, const Work& work) const {
    for (int32_t i = 0; i < count; ++i) work(i);
  }
};

}  // namespace

absl::Status CheckSplitExchangeArgs(const SplitExchangeArgs& args) {
  const SplitMailbox& mailbox = args.mailbox;
  for (const void* const array :
       {static_cast<const void*>(args.gathered), static_cast<const void*>(args.tables),
        static_cast<const void*>(args.drawn), static_cast<const void*>(args.number),
        static_cast<const void*>(args.own), static_cast<const void*>(mailbox.counts),
        static_cast<const void*>(mailbox.tables), static_cast<const void*>(mailbox.drawn),
        static_cast<const void*>(mailbox.asked), static_cast<const void*>(mailbox.late),
        static_cast<const void*>(mailbox.done), static_cast<const void*>(mailbox.answer),
        static_cast<const void*>(mailbox.answered)}) {
    if (array == nullptr) return InvalidInput("exchange of a split: one of its arrays is null");
  }
  if (args.num_counts >= 1 && args.num_slots >= 1 && args.deadline_ns >= 1) return absl::OkStatus();
  return InvalidInput("exchange of a split of ", args.num_counts, " counts, ", args.num_slots,
                      " slots and a deadline of ", args.deadline_ns, " ns, expected at least 1");
}

absl::Status SplitExchangeOnHost(const SplitExchangeArgs& args) {
  EPLB_RETURN_IF_ERROR(CheckSplitExchangeArgs(args));
  ExchangeSplit(args, OneThreadOfHost());
  return absl::OkStatus();
}

absl::Status CheckSplitNoteArgs(const SplitNoteArgs& args) {
  if (args.quotas != nullptr && args.refused != nullptr && args.tables != nullptr &&
      args.drawn != nullptr && args.number != nullptr && args.counts != nullptr &&
      args.note != nullptr && args.num_slots >= 1) {
    return absl::OkStatus();
  }
  return InvalidInput("note of a split of ", args.num_slots,
                      " slots: expected at least 1, and no array that is null");
}

absl::Status SplitNoteOnHost(const SplitNoteArgs& args) {
  EPLB_RETURN_IF_ERROR(CheckSplitNoteArgs(args));
  NoteSplit(args, OneThreadOfHost());
  return absl::OkStatus();
}

}  // namespace eplb::cuda
