#include "proto/wire/names.h"

#include <gtest/gtest.h>

#include <string>

namespace eplb::wire {
namespace {

TEST(NamesTest, APlainNameHasLettersDigitsDotsUnderscoresAndHyphens) {
  EXPECT_TRUE(CheckPlainName("job", "moe-1.B_2").ok());
  for (const char* bad : {"a b", "a/b", "\xff", "\xc3\xa4", "a\n"}) {
    EXPECT_EQ(CheckPlainName("job", bad).message(), "job has a character outside [A-Za-z0-9._-]")
        << bad;
  }
}

TEST(NamesTest, ANameIsBoundedAndNotEmpty) {
  EXPECT_TRUE(CheckPlainName("job", std::string(128, 'x')).ok());
  EXPECT_EQ(CheckPlainName("job", std::string(129, 'x')).message(),
            "job has 129 characters, expected 1..128");
  EXPECT_FALSE(CheckPlainName("job", "").ok());
  EXPECT_TRUE(CheckPlainName("request_id", std::string(64, 'x'), kMaxRequestIdLength).ok());
  EXPECT_FALSE(CheckPlainName("request_id", std::string(65, 'x'), kMaxRequestIdLength).ok());
  EXPECT_FALSE(CheckPrintableName("run_id", std::string(129, 'x')).ok());
}

TEST(NamesTest, ARunMayHaveAnyPrintableAscii) {
  EXPECT_TRUE(CheckPrintableName("run_id", "run/7@host").ok());
  EXPECT_EQ(CheckPrintableName("run_id", "run 7").message(),
            "run_id has a character outside printable ASCII without blanks");
}

}  // namespace
}  // namespace eplb::wire
