#include "base/foreign_text.h"

#include <gtest/gtest.h>

#include <string>

#include <nlohmann/json.hpp>

namespace eplb {
namespace {

TEST(IsUtf8Test, FollowsTheStandard) {
  for (const char* text : {"", "plain", "K\xc3\xb6ln", "\xe2\x86\x92", "\xf0\x9f\x90\x99",
                           "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
  }
  for (const char* text :
       {"\xff", "K\xc3", "\xc3(", "\xe2\x86", "\xc0\xaf", "\xc1\xbf", "\x80", "\xe0\x9f\xbf",
        "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80"}) {
    EXPECT_FALSE(IsUtf8(text)) << text;
  }
}

TEST(PrintableTest, LetsTextOfAnyLanguagePass) {
  for (const char* text : {"", "a b", "K\u00f6ln", "\u4f4d\u7f6e", "\u0639\u0631\u0628",
                           "\U0001f419", "\u00a0", "\ufffd", "a\u0301"}) {
    EXPECT_EQ(Printable(text), text);
  }
}

TEST(PrintableTest, LineEndsAndTabsBecomeSpaces) {
  EXPECT_EQ(Printable("one\ntwo\r\nthree\tfour"), "one two  three four");
}

TEST(PrintableTest, NothingThatATerminalObeysRemains) {
  EXPECT_EQ(Printable(std::string("a\0b", 3)), "a?b");
  EXPECT_EQ(Printable("a\x1b[31mb\x07\x7f"), "a?[31mb??");
  EXPECT_EQ(Printable("a\u009b31mb\u0085"), "a?31mb?");  // CSI and NEL of C1
}

TEST(PrintableTest, NothingInvisibleOrTurnedRemains) {
  EXPECT_EQ(Printable("job\u202egnp.exe"), "job?gnp.exe");
  for (const char* text :
       {"\u00ad", "\u061c", "\u200b", "\u200d", "\u200f", "\u2028", "\u202a", "\u2066", "\u2069",
        "\u3164", "\ufe0f", "\ufeff", "\ufff9", "\U000e0041"}) {
    EXPECT_EQ(Printable(text), "?") << text;
  }
}

TEST(PrintableTest, ResultIsUtf8WhateverTheBytes) {
  EXPECT_EQ(Printable("a\xffz"), "a?z");
  EXPECT_EQ(Printable("\xe2\x82"), "??");
  std::string bytes;
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      bytes += static_cast<char>(first);
      bytes += static_cast<char>(second);
    }
  }
  for (size_t at = 0; at + 5 <= bytes.size(); ++at) {
    const std::string text = Printable(bytes.substr(at, 5));
    ASSERT_TRUE(IsUtf8(text)) << at;
    ASSERT_EQ(Printable(text), text) << at;
  }
}

TEST(FirstCharactersTest, SplitsNoCharacter) {
  EXPECT_EQ(FirstCharacters("abc", 3), "abc");
  EXPECT_EQ(FirstCharacters("abc", 2), "ab");
  EXPECT_EQ(FirstCharacters("a\u20acb", 3), "a");
  EXPECT_EQ(FirstCharacters("a\u20acb", 4), "a\u20ac");
  EXPECT_EQ(FirstCharacters("\U0001f419", 3), "");
  EXPECT_EQ(FirstCharacters("abc", 0), "");
}

TEST(ClippedTest, WhatFitsIsLeftAsItIs) {
  EXPECT_EQ(Clipped("", 8), "");
  EXPECT_EQ(Clipped("12345678", 8), "12345678");
  EXPECT_EQ(Clipped(std::string(kMaxText, 'x')), std::string(kMaxText, 'x'));
}

TEST(ClippedTest, LongerTextEndsInDots) {
  EXPECT_EQ(Clipped("123456789", 8), "12345...");
  EXPECT_EQ(Clipped(std::string(1 << 20, 'x')), std::string(kMaxText - 3, 'x') + "...");
}

TEST(ClippedTest, NoCharacterIsCut) {
  const std::string euro = "\xE2\x82\xAC";  // three bytes
  EXPECT_EQ(Clipped("1" + euro + euro + euro, 8), "1" + euro + "...");
  EXPECT_EQ(Clipped(euro + euro + euro, 8), euro + "...");
  EXPECT_EQ(Clipped(euro + euro + euro, 5), "...");
}

TEST(ClippedTest, EveryCutOfEveryTextIsUtf8) {
  const std::string text = "a\u00f6\u20ac\U0001f419" + std::string("\xe2\x82") + "\u009b\u00f6z";
  for (size_t most = 3; most <= text.size(); ++most) {
    const std::string clipped = Clipped(text, most);
    EXPECT_TRUE(IsUtf8(clipped)) << most;
    EXPECT_EQ(Printable(clipped), clipped) << most;
    EXPECT_LE(clipped.size(), most);
  }
}

TEST(EscapedJsonTest, IsTheSameDocumentWithoutWhatATerminalObeys) {
  const nlohmann::json document = {{"K\u00f6ln", "a\x1b[0m\u009b31m\x7f\u202e\U000e0041\n\"\\"},
                                   {"list", {1, 2.5, nullptr}}};
  for (const int indent : {-1, 2}) {
    const std::string json = EscapedJson(document.dump(indent));
    EXPECT_EQ(nlohmann::json::parse(json), document);
    EXPECT_NE(json.find("K\u00f6ln"), std::string::npos);
    EXPECT_NE(json.find("\\u009b31m\\u007f\\u202e\\udb40\\udc41"), std::string::npos) << json;
    EXPECT_EQ(json.find("\u009b"), std::string::npos);
  }
}

}  // namespace
}  // namespace eplb
