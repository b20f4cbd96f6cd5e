#include "cuda/split_exchange.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

namespace eplb::cuda {
namespace {

struct ExchangeMemory {
  std::vector<int64_t> gathered = {5, 6, 7};
  std::vector<int64_t> own = {9, 9};
  std::vector<int64_t> counts = {0, 0, 0};
  std::vector<int64_t> answer = {1, 2};
  int32_t tables = 6;
  int64_t drawn = 8;
  int64_t number = 0, asked = 0, late = 0, done = 0, answered = 0, seen_tables = 0, seen_drawn = 0;

  SplitExchangeArgs Args() {
    return {.gathered = gathered.data(),
            .tables = &tables,
            .drawn = &drawn,
            .number = &number,
            .own = own.data(),
            .mailbox = {.counts = counts.data(),
                        .tables = &seen_tables,
                        .drawn = &seen_drawn,
                        .asked = &asked,
                        .late = &late,
                        .done = &done,
                        .answer = answer.data(),
                        .answered = &answered},
            .num_counts = 3,
            .num_slots = 2,
            .deadline_ns = 2'000'000};
  }
};

TEST(SplitExchangeTest, ALateAnswerIsNotThatOfTheNextBatch) {
  ExchangeMemory memory;
  ASSERT_TRUE(SplitExchangeOnHost(memory.Args()).ok());
  EXPECT_EQ(memory.own, (std::vector<int64_t>{kNoQuota, kNoQuota}));
  EXPECT_EQ(memory.counts, memory.gathered);
  EXPECT_EQ(memory.seen_tables, 6);
  EXPECT_EQ(memory.seen_drawn, 8);
  EXPECT_EQ(memory.late, 1);
  memory.answered = 1;  // after the deadline
  ASSERT_TRUE(SplitExchangeOnHost(memory.Args()).ok());
  EXPECT_EQ(memory.own, (std::vector<int64_t>{kNoQuota, kNoQuota}));
  EXPECT_EQ(memory.late, 2);
  SplitExchangeArgs args = memory.Args();
  args.deadline_ns = 60'000'000'000;
  std::thread splitter([&] {
    while (LoadShared(&memory.asked) != 3) std::this_thread::yield();
    StoreShared(memory.answer.data(), LoadShared(memory.counts.data() + 2));
    StoreShared(&memory.answered, 3);
  });
  ASSERT_TRUE(SplitExchangeOnHost(args).ok());
  splitter.join();
  EXPECT_EQ(memory.own, (std::vector<int64_t>{7, 2}));
  EXPECT_EQ(memory.late, 2);
  EXPECT_EQ(memory.done, 3);
}

TEST(SplitNoteTest, HasTheNewestBatches) {
  std::vector<int64_t> quotas = {5, 6};
  int32_t refused = -1;
  int64_t tables = 3;
  const int64_t drawn = 9;
  int64_t number = 7;
  std::vector<int64_t> counts(2);
  std::vector<int64_t> note(static_cast<size_t>(NoteWords(2)));
  const SplitNoteArgs args{.quotas = quotas.data(),
                           .refused = &refused,
                           .tables = &tables,
                           .drawn = &drawn,
                           .number = &number,
                           .counts = counts.data(),
                           .note = note.data(),
                           .num_slots = 2};
  ASSERT_TRUE(SplitNoteOnHost(args).ok());
  quotas = {-1, -1};
  refused = 0;
  ASSERT_TRUE(SplitNoteOnHost(args).ok());
  EXPECT_EQ(note[kBatches], 2);
  EXPECT_EQ(note[kRefused], 1);
  EXPECT_EQ(note[kDrawn], 9);
  EXPECT_EQ(note[kBegun], 2);
  EXPECT_EQ(note[kNewest], 1);
  EXPECT_EQ(note[kNoted], 8);
  const auto entry = [&](int64_t batch) {
    const int64_t* const words = NoteEntry(note.data(), batch, 2);
    return std::vector<int64_t>(words, words + 3);
  };
  EXPECT_EQ(entry(0), (std::vector<int64_t>{3, 5, 6}));
  EXPECT_EQ(entry(1).front(), 0) << "refused";
  refused = -1;
  for (int64_t batch = 2; batch <= kNotedBatches; ++batch) {
    quotas = {10 * batch, batch};
    ASSERT_TRUE(SplitNoteOnHost(args).ok());
  }
  EXPECT_EQ(note[kBatches], kNotedBatches + 1);
  EXPECT_EQ(entry(1).front(), 0) << "the oldest";
  EXPECT_EQ(entry(kNotedBatches), (std::vector<int64_t>{3, 640, 64}));
  EXPECT_FALSE(SplitNoteOnHost({}).ok());
}

TEST(SplitExchangeTest, ASplitterThatHasEndedIsNotAwaited) {
  ExchangeMemory memory;
  memory.answered = kNoAnswers;
  SplitExchangeArgs args = memory.Args();
  args.deadline_ns = int64_t{3600} * 1'000'000'000;
  ASSERT_TRUE(SplitExchangeOnHost(args).ok());
  EXPECT_EQ(memory.own, (std::vector<int64_t>{kNoQuota, kNoQuota}));
  EXPECT_EQ(memory.late, 1);
}

TEST(SplitExchangeTest, RefusesNullArraysAndNumbersBelowOne) {
  ExchangeMemory memory;
  SplitExchangeArgs args = memory.Args();
  args.mailbox.answer = nullptr;
  EXPECT_EQ(SplitExchangeOnHost(args).message(), "exchange of a split: one of its arrays is null");
  args = memory.Args();
  args.deadline_ns = 0;
  EXPECT_EQ(SplitExchangeOnHost(args).message(),
            "exchange of a split of 3 counts, 2 slots and a deadline of 0 ns, expected at least 1");
}

}  // namespace
}  // namespace eplb::cuda
