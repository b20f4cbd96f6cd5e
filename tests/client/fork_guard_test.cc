#include "client/fork_guard.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace eplb {
namespace {

// Returns the result of `check` in a forked child.
bool TrueInChild(const std::function<bool()>& check) {
  const pid_t child = fork();
  if (child == 0) _exit(check() ? 0 : 1);
  int status = -1;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

TEST(ForksTest, AChildInForkedChildAndWhatItMakesIsNot) {
  const ForkGuard here;
  EXPECT_FALSE(here.InForkedChild());
  EXPECT_TRUE(TrueInChild([&] {
    const ForkGuard there;
    const bool grandchild = TrueInChild([&] { return there.InForkedChildQuietly(); });
    return here.InForkedChildQuietly() && !there.InForkedChild() && grandchild;
  }));
  EXPECT_FALSE(here.InForkedChild()) << "the parent is where it was";
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
