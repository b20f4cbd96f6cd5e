#include "client/forks.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace eplb {
namespace {

// Whether `check` is true in a forked child.
bool TrueInChild(const std::function<bool()>& check) {
  const pid_t child = fork();
  if (child == 0) _exit(check() ? 0 : 1);
  int status = -1;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

TEST(ForksTest, AChildIsElsewhereAndWhatItMakesIsNot) {
  const Birthplace here;
  EXPECT_FALSE(here.IsElsewhere());
  EXPECT_TRUE(TrueInChild([&] {
    const Birthplace there;
    const bool grandchild = TrueInChild([&] { return there.IsElsewhereQuietly(); });
    return here.IsElsewhereQuietly() && !there.IsElsewhere() && grandchild;
  }));
  EXPECT_FALSE(here.IsElsewhere()) << "the parent is where it was";
}

TEST(ForksTest, GrpcBeginsInOneProcessOfALine) {
  EXPECT_TRUE(TrueInChild([] { return EnterGrpc().ok() && EnterGrpc().ok(); }))
      << "the parent has not begun";
  EXPECT_TRUE(EnterGrpc().ok()) << "a child's gRPC is not the parent's";
  EXPECT_TRUE(
      TrueInChild([] { return EnterGrpc().code() == absl::StatusCode::kFailedPrecondition; }));
  EXPECT_TRUE(EnterGrpc().ok());
}

}  // namespace
}  // namespace eplb
