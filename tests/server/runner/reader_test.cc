#include "server/runner/reader.h"

#include <gtest/gtest.h>

#include <future>
#include <numeric>
#include <vector>

namespace eplb {
namespace {

TEST(ReaderTest, QuestionsAreAnsweredInOrderAlsoThoseThatWaitAtTheEnd) {
  std::vector<int> answered;
  {
    Reader reader;
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(reader.Post([&answered, i] { answered.push_back(i); }));
    }
  }
  std::vector<int> all(100);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(answered, all);
}

TEST(ReaderTest, ItIsAnotherThread) {
  Reader reader;
  std::promise<std::thread::id> id;
  ASSERT_TRUE(reader.Post([&id] { id.set_value(std::this_thread::get_id()); }));
  EXPECT_NE(id.get_future().get(), std::this_thread::get_id());
}

TEST(ReaderTest, OnlySoMuchMayWait) {
  Reader reader;
  std::promise<void> began;
  std::promise<void> go;
  ASSERT_TRUE(reader.Post([&began, may_end = go.get_future().share()] {
    began.set_value();
    may_end.wait();
  }));
  began.get_future().wait();
  for (size_t i = 0; i < Reader::kMaxWaiting; ++i) ASSERT_TRUE(reader.Post([] {}));
  EXPECT_FALSE(reader.Post([] { FAIL() << "it was refused"; }));
  go.set_value();
}

}  // namespace
}  // namespace eplb
