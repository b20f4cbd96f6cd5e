#include "client/cli/lint_subject.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/client/cli/formats/test_files.h"

namespace eplb::cli {
namespace {

using LintSubjectTest = FilesTest;

TEST_F(LintSubjectTest, AFileOfOursIsReadHoweverBrokenItIs) {
  const auto subject = ReadLintSubject(
      Write("a.json", R"({"format":"eplb.placement.v1","num_slots":4,"num_gpus":"two"})"));
  ASSERT_TRUE(subject.ok()) << subject.status();
  EXPECT_TRUE(subject->is_ours());
  EXPECT_EQ(*subject->ShapeNumber("num_slots"), 4);
  EXPECT_FALSE(subject->ShapeNumber("num_gpus").ok());
}

TEST_F(LintSubjectTest, AnotherSystemsFileHasTheNumbersThatItImplies) {
  const auto subject = ReadLintSubject(
      Write("a.yaml", "initial_global_assignments:\n  3: [0, 1, 0]\n  5: [2, 0, 1]\n"));
  ASSERT_TRUE(subject.ok()) << subject.status();
  EXPECT_FALSE(subject->is_ours());
  EXPECT_EQ(*subject->ShapeNumber("num_layers"), 2);
  EXPECT_EQ(*subject->ShapeNumber("num_slots"), 3);
  EXPECT_EQ(subject->num_experts(), 3);
  EXPECT_TRUE(absl::IsNotFound(subject->ShapeNumber("num_gpus").status()));
}

TEST_F(LintSubjectTest, AnIdAboveTheSlotsIsNoExperts) {
  const auto subject =
      ReadLintSubject(Write("a.yaml", "initial_global_assignments:\n  0: [0, 900, 1]\n"));
  ASSERT_TRUE(subject.ok()) << subject.status();
  EXPECT_EQ(subject->num_experts(), 3);
}

TEST_F(LintSubjectTest, WhatIsNoPlacementIsRefusedWithItsPath) {
  for (const char* text : {"{", R"({"format":"eplb.load.v1"})", "once upon a time"}) {
    const std::string path = Write("a.json", text);
    const std::string message(ReadLintSubject(path).status().message());
    EXPECT_EQ(message.rfind(path + ": ", 0), 0u) << message;
  }
}

}  // namespace
}  // namespace eplb::cli
