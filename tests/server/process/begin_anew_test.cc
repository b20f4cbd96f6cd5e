#include "server/process/begin_anew.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <string>

namespace eplb {
namespace {

constexpr char kText[] = "[listen]\ngrpc = \"127.0.0.1:1\"\n";
constexpr int kHasText = 40;
constexpr int kHasNone = 41;
constexpr int kHasAnother = 42;
constexpr int kOther = 100;  // a descriptor that the new process must not have

// This program begins anew as itself. The new process reports what it inherited, before main.
[[maybe_unused]] const bool is_first = [] {
  if (!HasBegunAnew()) return true;
  const absl::StatusOr<std::optional<std::string>> text = InheritedText();
  const bool is_alone = fcntl(kOther, F_GETFD) < 0;
  if (!text.ok() || !is_alone) std::_Exit(EXIT_FAILURE);
  if (!text->has_value()) std::_Exit(kHasNone);
  std::_Exit(**text == kText ? kHasText : kHasAnother);
}();

void BeginWith(std::optional<int> text) {
  static std::string name = "begin_anew";
  (void)dup2(STDERR_FILENO, kOther);  // without FD_CLOEXEC
  std::array<char*, 2> arguments = {name.data(), nullptr};
  BeginAnew(arguments.data(), text);
  std::_Exit(EXIT_FAILURE);
}

TEST(BeginAnewTest, AFirstProcessHasNotBegunAnew) { EXPECT_FALSE(HasBegunAnew()); }

TEST(BeginAnewTest, TheNewProcessReadsTheText) {
  const absl::StatusOr<int> text = HoldText(kText);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EXIT(BeginWith(*text), ::testing::ExitedWithCode(kHasText), "");
  (void)close(*text);
}

TEST(BeginAnewTest, TheNewProcessKnowsThatItBeganAnewWithoutAText) {
  EXPECT_EXIT(BeginWith(std::nullopt), ::testing::ExitedWithCode(kHasNone), "");
}

TEST(BeginAnewTest, AnEmptyTextIsInherited) {
  const absl::StatusOr<int> text = HoldText("");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EXIT(BeginWith(*text), ::testing::ExitedWithCode(kHasAnother), "");
  (void)close(*text);
}

}  // namespace
}  // namespace eplb
