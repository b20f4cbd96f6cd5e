#include <cstdint>

#include "client/cli/formats/engine_formats.h"
#include "client/cli/formats/zip_archive.h"
#include "tests/client/cli/formats/npy_bytes.h"
#include "tests/client/cli/formats/refused.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

// Slots 0 and 2 hold expert 0, whose primary is slot 2.
constexpr char kGoodDeepSeek[] =
    R"({"physical_to_logical_map":[[0,1,0]],"logical_to_physical_map":[[[2,0],[1,-1]]],)"
    R"("logical_replica_count":[[2,1]]})";

std::string Npy(const std::string& shape, const std::vector<int64_t>& numbers) {
  return NpyWithDict(NpyDict("<i8", shape), Bytes(numbers));
}

std::string Npz(std::vector<ZipMember> arrays) {
  for (ZipMember& array : arrays) array.name += ".npy";
  return *WriteZip(arrays);
}

std::string GoodNpz() {
  return Npz({{"physical_to_logical_map", Npy("(1, 3)", {0, 1, 0})},
              {"logical_to_physical_map", Npy("(1, 2, 2)", {2, 0, 1, -1})},
              {"logical_replica_count", Npy("(1, 2)", {2, 1})}});
}

TEST(DeepseekFormatTest, ThreeMapsSayTheOrderOfReplicas) {
  for (const std::string& bytes : {std::string(kGoodDeepSeek), GoodNpz()}) {
    const auto parts = Must(ParseDeepseekPlacement("f", bytes));
    EXPECT_EQ(parts.num_experts, 2);
    ASSERT_TRUE(parts.ranks.has_value());
    EXPECT_EQ((*parts.ranks)(0, 0), 1);
    EXPECT_EQ((*parts.ranks)(0, 2), 0);
    const auto placement = MakePlacement(parts, {});
    EXPECT_EQ(placement->PrimaryOf(LayerId{0}, ExpertId{0}), SlotId{2});
    EXPECT_EQ(*WriteDeepseekPlacement(*placement, {.path = "x.json"}),
              std::string(kGoodDeepSeek) + "\n");
    EXPECT_EQ(*WriteDeepseekPlacement(*placement, {.path = "x.npz"}), GoodNpz());
  }
}

TEST(DeepseekFormatTest, PaddingMayBeWiderThanNeeded) {
  const auto parts = Must(
      ParseDeepseekPlacement("f", With(kGoodDeepSeek, "[[2,0],[1,-1]]", "[[2,0,-1],[1,-1,-1]]")));
  EXPECT_EQ(MakePlacement(parts, {})->max_replicas(), 2);
}

TEST(DeepseekFormatTest, OneMapAloneHasNoOrder) {
  const std::vector<int32_t> fortran = {0, 1, 1, 0, 0, 1};
  for (const std::string& bytes :
       {Npy("(2, 3)", {0, 1, 0, 1, 0, 1}), std::string("0,1,0\n1, 0 ,1\n"),
        std::string("\n0,1,0\r\n\n1,0,1"),
        NpyWithDict(NpyDict("<i4", "(2, 3)", true), Bytes(fortran))}) {
    const auto parts = Must(ParseDeepseekPlacement("f", bytes));
    EXPECT_FALSE(parts.ranks.has_value());
    ASSERT_EQ(parts.slots.cols(), 3);
    EXPECT_EQ(parts.slots(0, 1), 1);
    EXPECT_EQ(parts.slots(1, 2), 1);
    EXPECT_EQ(*WriteDeepseekPlacement(*MakePlacement(parts, {}), {.path = "x.csv"}),
              "0,1,0\n1,0,1\n");
  }
}

TEST(DeepseekFormatTest, PlacementsThatAreNoneAreRefused) {
  const std::string good = kGoodDeepSeek;
  const std::string npz = GoodNpz();
  const std::string array = Npy("(1, 3)", {0, 1, 0});
  const Refused cases[] = {
      {"Empty", "", "is no placement of deepseek; tried"},
      {"Text", "hello\n", "tried .npy and CSV"},
      {"List", "[[0,1]]", "tried .npy and CSV"},
      {"Truncated", good.substr(0, 70), "line 1, column"},
      {"Ours", With(good, "{", "{\"format\":\"eplb.placement.v1\","), "the key \"format\""},
      {"KeyTwice", With(good, "logical_replica_count", "physical_to_logical_map"), "given twice"},
      {"NoCounts", With(good, "logical_replica_count", "x"), "logical_replica_count is missing"},
      {"NoTable", With(good, "logical_to_physical_map", "x"), "logical_to_physical_map is missing"},
      {"Ragged", With(good, "[1,-1]", "[1]"), "layer 0 expert 1 has 1 entries, the first has 2"},
      {"Layers", With(good, "[[2,1]]", "[[2,1],[2,1]]"), "logical_replica_count 2 layers"},
      {"Experts", With(good, "[[2,1]]", "[[2,1,1]]"), "must be the same"},
      {"Count", With(good, "[[2,1]]", "[[2,2]]"), "expert 1 replica 1 is -1, expected a slot"},
      {"CountZero", With(good, "[[2,1]]", "[[2,0]]"), "expert 1 is 0, expected 1..2"},
      {"CountHuge", With(good, "[[2,1]]", "[[2000000000,1]]"), "expert 0 is 2000000000"},
      {"CountLess", With(good, "[[2,1]]", "[[1,1]]"), "expert 0 replica 1 is 0, expected -1"},
      {"SlotRange", With(good, "[2,0]", "[3,0]"), "replica 0 is 3, expected a slot in 0..2"},
      {"SlotOther", With(good, "[2,0]", "[1,0]"), "is slot 1, where physical_to_logical_map has"},
      {"SlotTwice", With(good, "[2,0]", "[2,2]"), "replica 1 is slot 2 a second time"},
      {"LeftOut", With(With(good, "[2,0]", "[2,-1]"), "[[2,1]]", "[[1,1]]"),
       "slot 0 holds expert 0, logical_to_physical_map leaves it out"},
      {"IdNoExpert", With(good, "[[0,1,0]]", "[[0,1,7]]"),
       "where physical_to_logical_map has expert 7"},
      {"NpyTruncated", array.substr(0, array.size() - 1), "truncated: has 23 bytes"},
      {"NpyHeader", array.substr(0, 30), "truncated in the header"},
      {"NpyFloat", NpyWithDict(NpyDict("<f8", "(1, 3)"), std::string(24, '\0')), "dtype <f8"},
      {"NpyBigEndian", NpyWithDict(NpyDict(">i8", "(1, 3)"), std::string(24, '\0')), "dtype >i8"},
      {"NpyCube", Npy("(1, 3, 1)", {0, 1, 0}), "has 3 dimensions, expected 2"},
      {"NpyHuge", Npy("(1000000000, 1000000000)", {0}), "at most"},
      {"NpyClaim", Npy("(16384, 16384)", {0}), "truncated: has 8 bytes"},
      {"NpyNone", Npy("(0, 3)", {}), "dimension of size 0"},
      {"NpyNegative", Npy("(1, 3)", {0, -4, 0}), "layer 0 entry 1 is -4"},
      {"NpyLarge", Npy("(1, 3)", {0, int64_t{1} << 40, 0}), "layer 0 entry 1 is 1099511627776"},
      {"NpzNoTable", Npz({{"physical_to_logical_map", array}}), "is missing"},
      {"NpzNoNpy", Npz({{"physical_to_logical_map", "hello"}}),
       "physical_to_logical_map does not begin with the magic"},
      {"NpzOther", *WriteZip({{"a.txt", array}}), "member \"a.txt\": is no .npy"},
      {"NpzTruncated", npz.substr(0, npz.size() - 10), "cut off"},
      {"NpzHalf", npz.substr(0, npz.size() / 2), "no whole zip archive"},
      {"CsvRagged", "0,1,0\n0,1\n", "layer 1 has 2 entries, layer 0 has 3"},
      {"CsvText", "0,1,0\n0,x,1\n", "line 2, column 2 is \"x\", expected a finite number"},
      {"CsvHeading", "a,b\n0,1\n", "tried .npy and CSV"},
      {"CsvNan", "0,1,0\n0,nan,1\n", "line 2, column 2 is \"nan\""},
      {"CsvEmptyCell", "0,1,0\n0,,1\n", "line 2, column 2 is \"\""},
      {"CsvReal", "0,1,0\n0,1.5,1\n", "[1][1] is 1.5, expected an integer"},
      {"CsvNegative", "0,1,0\n0,-2,1\n", "layer 1 entry 1 is -2"},
  };
  for (const Refused& refused : cases) {
    ExpectRefusal(refused, ParseDeepseekPlacement("f", refused.bytes).status());
  }
}

TEST(DeepseekFormatTest, ANumericHeadingOrIndexOfAMapIsNoticed) {
  EXPECT_THAT(
      std::string(ParseDeepseekPlacement("f", "0,1,2,3\n0,1,0,2\n2,0,1,0\n").status().message()),
      HasSubstr("f: looks as if its first row were a heading"));
  const auto indexed = Must(ParseDeepseekPlacement("f", "0,1,2,3\n1,2,3,0\n2,3,0,1\n3,0,1,2\n"));
  ASSERT_EQ(indexed.notes.size(), 1U);
  EXPECT_THAT(indexed.notes.front(), HasSubstr("first column were an index"));
  EXPECT_TRUE(ParseDeepseekPlacement("f", "0,1,2,3\n3,2,1,0\n")->notes.empty());
}

TEST(DeepseekFormatTest, AnotherEndingIsRefused) {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 1, .num_slots = 1, .num_gpus = 1});
  const auto bytes = WriteDeepseekPlacement(Placement::Static(topology), {.path = "x.txt"});
  EXPECT_THAT(std::string(bytes.status().message()), HasSubstr("x.txt: "));
  EXPECT_THAT(std::string(bytes.status().message()), HasSubstr(".npy, .npz, .json or .csv"));
}

TEST(DeepseekFormatTest, ALoadIsReadFromEveryForm) {
  const std::string npy = Npy("(2, 2)", {1, 2, 3, 4});
  for (const std::string& bytes :
       {npy, Npz({{"arr_0", npy}}), Npz({{"weight", npy}, {"other", Npy("(1,)", {1})}}),
        std::string("[[1,2],[3,4]]"), std::string("1,2\n3,4\n")}) {
    const auto windows = Must(ParseDeepseekLoad("f", bytes)).windows;
    ASSERT_TRUE(windows.front().load.is_counts());
    EXPECT_EQ(windows.front().load.counts()(1, 0), 3);
  }
  const auto reals = Must(ParseDeepseekLoad("f", "1.5,2e+00\n3,4\n")).windows;
  EXPECT_EQ(reals.front().load.ToDouble()(0, 1), 2.0);
}

TEST(DeepseekFormatTest, LoadsThatAreNoneAreRefused) {
  const std::string npy = Npy("(2, 2)", {1, 2, 3, 4});
  const std::vector<double> nan = {1, std::nan("")};
  const Refused cases[] = {
      {"Text", "hello", "is no load of deepseek; tried"},
      {"Object", "{}", "is no load of deepseek; tried"},
      {"TwoArrays", Npz({{"a", npy}, {"b", npy}}), "has 2 arrays, expected one"},
      {"BothNames", Npz({{"load", npy}, {"weight", npy}}), "has 2 arrays, expected one"},
      {"BadArray", Npz({{"a", npy.substr(0, npy.size() - 1)}}), "\"a\": truncated"},
      {"NpzOfAMap", Npz({{"physical_to_logical_map", npy}}),
       "holds \"physical_to_logical_map\", part of a placement; expected a load"},
      {"NpzOfCounts", Npz({{"logcnt", npy}}), "holds \"logcnt\", part of a placement"},
      {"NpzNan", Npz({{"a", NpyWithDict(NpyDict("<f8", "(1, 2)"), Bytes(nan))}}),
       "\"a\": load: layer 0 expert 1"},
      {"CsvRagged", "1,2\n3\n", "layer 1 has 1 experts, layer 0 has 2"},
      {"CsvNegative", "1,2\n3,-4\n", "layer 1 expert 1 is -4"},
      {"CsvInfinity", "1,2\n3,inf\n", "line 2, column 2 is \"inf\""},
      {"CsvRange", "1,2\n3,1e999\n", "line 2, column 2 is \"1e999\""},
      {"CsvTooLarge", "1,2\n3,9223372036854775808\n", "expert 1 is 9223372036854775808"},
      {"JsonRagged", "[[1,2],[3]]", "layer 1 has 1 experts"},
  };
  for (const Refused& refused : cases) {
    ExpectRefusal(refused, ParseDeepseekLoad("f", refused.bytes).status());
  }
}

TEST(DeepseekFormatTest, AHeadingInAFileThatIsCalledCsvIsNamed) {
  const std::string expected =
      "f.csv: line 1, column 1 is \"a\", expected a finite number; no heading is read";
  EXPECT_EQ(ParseDeepseekLoad("f.csv", "a,b\n0,1\n").status().message(), expected);
  EXPECT_EQ(ParseDeepseekPlacement("f.csv", "a,b\n0,1\n").status().message(), expected);
  EXPECT_EQ(ParseDeepseekLoad("f.csv", ",0,1\n0,4,2\n").status().message(),
            "f.csv: line 1, column 1 is \"\", expected a finite number; no heading is read");
  EXPECT_EQ(ParseDeepseekLoad("f.csv", "0,1\n0,b\n").status().message(),
            "f.csv: line 2, column 2 is \"b\", expected a finite number");
}

}  // namespace
}  // namespace eplb
