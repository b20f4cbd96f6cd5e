#include "client/cli/get_windows.h"

#include <gmock/gmock.h>

#include "tests/client/cli/scripted_query.h"

namespace eplb::cli {
namespace {

using ::testing::HasSubstr;

v1::Window WindowAt(uint64_t number, uint64_t first_step) {
  v1::Window window;
  window.set_window(number);
  window.set_run_id("run-1");
  window.set_first_step(first_step);
  window.set_last_step(first_step + 9);
  window.add_versions(3);
  window.set_coverage(1);
  window.set_tokens(1000);
  window.set_balancedness(0.5);
  window.set_balancedness_static(0.125);
  window.set_balancedness_without_eplb(0.25);
  return window;
}

class GetWindowsTest : public ::testing::Test {
 protected:
  GetWindowsTest() { *daemon_.status.add_jobs() = ExampleJob(); }
  Output Run(Format format = Format::kTable) {
    return RunGetWindows({.query = daemon_.Options(format), .job = ""}, kPlain);
  }
  ScriptedQuery daemon_;
};

TEST_F(GetWindowsTest, StepsWithoutAWindowAreALineAndAnEmptyColumn) {
  daemon_.windows = {WindowAt(1, 0), WindowAt(2, 10), WindowAt(5, 70)};
  daemon_.windows[1].clear_balancedness();
  const Output output = Run();
  EXPECT_EQ(output.exit_code, kOk);
  EXPECT_EQ(output.out,
            " steps   measured  without EPLB  versions  coverage  tokens\n"
            "  0..9      0.500         0.250         3   100.0 %   1,000\n"
            "10..19          -         0.250         3   100.0 %   1,000\n"
            "20..69  no window             -         -         -       -\n"
            "70..79      0.500         0.250         3   100.0 %   1,000\n"
            "\n"
            "Measured balancedness from left to right; full height is 1\n"
            "\n"
            "\n"
            "##       ##\n"
            "##       ##\n");
}

TEST_F(GetWindowsTest, AnotherRunThatBeginsLaterIsNoGap) {
  daemon_.windows = {WindowAt(1, 0), WindowAt(2, 100)};
  daemon_.windows[1].set_run_id("run-2");
  EXPECT_THAT(Run().out, testing::Not(HasSubstr("no window")));
}

TEST_F(GetWindowsTest, JsonHasTheKeysOfTheApiAndNullForWhatIsNotKnown) {
  daemon_.windows = {WindowAt(1, 0)};
  EXPECT_THAT(Run(Format::kJson).out, HasSubstr(R"({"job":"train","windows":[{"window":1,)"));
  EXPECT_THAT(Run(Format::kJson).out, HasSubstr(R"("step_seconds":null)"));
}

TEST_F(GetWindowsTest, NoWindowIsSaid) {
  EXPECT_EQ(Run().out, "job train has no complete window yet\n");
}

}  // namespace
}  // namespace eplb::cli
