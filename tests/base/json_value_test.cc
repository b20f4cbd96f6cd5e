#include "base/json_value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace eplb::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(JsonValueTest, NestedArraysStayFlatWithTheirShape) {
  const absl::StatusOr<JsonValue> value = ParseJson(" [[1,2],[],[3]] ");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_THAT(value->numbers.integers, ElementsAre(1, 2, 3));
  EXPECT_THAT(value->numbers.children, ElementsAre(ElementsAre(3), ElementsAre(2, 0, 1)));
  EXPECT_EQ(value->numbers.problem, "");
}

TEST(JsonValueTest, IntegersAreExactUpToTheLargest) {
  const absl::StatusOr<JsonValue> value = ParseJson("[9223372036854775807,-9223372036854775808]");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_THAT(value->numbers.integers, ElementsAre(INT64_MAX, INT64_MIN));
}

TEST(JsonValueTest, LiteralsAboveInt64AreNamedWithTheirIndex) {
  for (const std::string literal : {"9223372036854775808", "99999999999999999999"}) {
    const absl::StatusOr<JsonValue> value = ParseJson("[[1,2],[" + literal + ",4]]");
    ASSERT_TRUE(value.ok()) << value.status();
    EXPECT_EQ(value->numbers.too_large, literal);
    EXPECT_EQ(value->numbers.too_large_index, 2);
    EXPECT_FALSE(value->numbers.all_integers());
  }
}

TEST(JsonValueTest, OneRealMakesAllNumbersReal) {
  const absl::StatusOr<JsonValue> value = ParseJson("[1,3.0,4]");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_THAT(value->numbers.reals, ElementsAre(1.0, 3.0, 4.0));
  EXPECT_EQ(value->numbers.too_large_index, -1);
}

TEST(JsonValueTest, TheFirstNumberThatIsNoInt64IsNamedWithItsPlace) {
  const auto problem = [](const std::string& text) {
    return std::string(CheckIntegers(ParseJson(text)->numbers, "map", "0..9").message());
  };
  EXPECT_EQ(problem("[[1,2],[3]]"), "");
  EXPECT_EQ(problem("[[1,2],[],[3,4.5,1e30]]"), "map[2][1] is 4.5, expected an integer");
  const std::string large = "1" + std::string(30, '0');
  EXPECT_EQ(problem("[[[1,2],[3,4]],[[5,6],[7," + large + "]],[[0.5]]]"),
            "map[1][1][1] is " + large + ", expected 0..9");
  EXPECT_EQ(PlaceOf(ParseJson("[[],[7]]")->numbers, 0), "[1][0]");
}

TEST(JsonValueTest, EntriesOfDifferentDepthsAreNamed) {
  EXPECT_EQ(ParseJson("[[1],2]")->numbers.problem, "[1] is an integer, its neighbours are not");
  EXPECT_EQ(ParseJson("[1,[2]]")->numbers.problem, "[1] is an array, its neighbours are not");
  EXPECT_EQ(ParseJson("[[1],[null]]")->numbers.problem, "[1][0] is null");
  EXPECT_EQ(ParseJson("[[1],[1,{\"a\":1}]]")->numbers.problem, "[1][1] is an object");
}

TEST(JsonValueTest, ObjectsInAnArrayAreKept) {
  const absl::StatusOr<JsonValue> value =
      ParseJson(R"({"list":[{"id":0,"sub":[{"cells":[3,4]}]},{"id":1,"sub":[]}]})");
  ASSERT_TRUE(value.ok()) << value.status();
  const JsonValue* list = value->Find("list");
  ASSERT_NE(list, nullptr);
  EXPECT_THAT(list->numbers.children, ElementsAre(ElementsAre(2)));
  EXPECT_EQ(list->numbers.problem, "[0] is an object");
  ASSERT_EQ(list->objects.size(), 2U);
  EXPECT_EQ(*GetInteger(list->objects[1], "id"), 1);
  const JsonValue* sub = list->objects[0].Find("sub");
  ASSERT_EQ(sub->objects.size(), 1U);
  EXPECT_THAT((*GetNumbers(sub->objects[0], "cells", 1))->integers, ElementsAre(3, 4));
  EXPECT_TRUE(ParseJson("[[{}]]")->objects.empty());
}

TEST(JsonValueTest, ObjectsInArraysAndKeysAreBounded) {
  std::string objects = "[{}";
  for (int i = 0; i < 1 << 18; ++i) objects += ",{}";
  EXPECT_THAT(std::string(ParseJson(objects + "]").status().message()),
              HasSubstr("more than 262144 objects in arrays"));
  EXPECT_TRUE(ParseJson(R"({"a":1,"b":2})", 2).ok());
  EXPECT_THAT(std::string(ParseJson(R"({"a":1,"b":2,"c":3})", 2).status().message()),
              HasSubstr("more than 2 keys"));
}

TEST(JsonValueTest, MembersOfNestedObjectsAreFound) {
  const absl::StatusOr<JsonValue> value =
      ParseJson(R"({"a":{"b":-7,"c":"x"},"d":true,"e":null,"f":2.5})");
  ASSERT_TRUE(value.ok()) << value.status();
  const JsonValue* a = value->Find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(*GetInteger(*a, "b"), -7);
  EXPECT_EQ(*GetString(*a, "c"), "x");
  EXPECT_TRUE(value->Find("d")->boolean);
  EXPECT_EQ(value->Find("e")->kind, JsonValue::Kind::kNull);
  EXPECT_EQ(value->Find("f")->real, 2.5);
  EXPECT_EQ(value->Find("g"), nullptr);
}

TEST(JsonValueTest, TheSameKeyInTwoObjectsIsFine) {
  EXPECT_TRUE(ParseJson(R"({"a":{"a":1},"b":[{"a":1},{"a":2}]})").ok());
}

TEST(JsonValueTest, KeysWithEqualEscapesAreTheSameKey) {
  EXPECT_THAT(std::string(ParseJson(R"({"load":1,"\u006coad":2})").status().message()),
              HasSubstr("key \"load\" is given twice"));
}

TEST(JsonValueTest, NestingBeyondTheBoundIsRefusedOnBothKinds) {
  EXPECT_TRUE(ParseJson(std::string(32, '[') + std::string(32, ']')).ok());
  EXPECT_FALSE(ParseJson(std::string(33, '[') + std::string(33, ']')).ok());
  std::string objects;
  for (int i = 0; i < 40; ++i) objects += "{\"a\":";
  EXPECT_THAT(std::string(ParseJson(objects).status().message()), HasSubstr("nested deeper"));
}

TEST(JsonValueTest, MessagesStayShortAndPrintable) {
  const std::string bytes = "[1," + std::string(5000, 'x') + "\x01\xff\n";
  const std::string message(ParseJson(bytes).status().message());
  EXPECT_LT(message.size(), 200U);
  for (const char c : message) EXPECT_TRUE(c >= ' ' && c <= '~') << message;
}

TEST(JsonValueTest, QuotedTextComesBack) {
  const std::string text = "a \"b\"\n\t\\ \x01 \xC3\xA9";
  const absl::StatusOr<JsonValue> value = ParseJson("{\"k\":" + JsonQuote(text) + "}");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(*GetString(*value, "k"), text);
  EXPECT_TRUE(ParseJson(JsonQuote("\xff\xfe")).ok());
}

}  // namespace
}  // namespace eplb::wire
