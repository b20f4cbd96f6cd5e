#include "client/cli/formats/load_file.h"

#include <gmock/gmock.h>

#include <string>

#include "tests/client/cli/formats/npy_bytes.h"
#include "tests/client/cli/formats/refused.h"
#include "tests/client/cli/formats/test_files.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

using LoadFileTest = FilesTest;

TEST_F(LoadFileTest, TheContentTellsTheFormatNotTheName) {
  const std::string npy = NpyWithDict(NpyDict("|u1", "(1, 2)"), "\1\2");
  for (const std::string& content :
       {npy, std::string(" \n[[1,2]]"), std::string(R"({"format":"eplb.load.v1","load":[[1,2]]})"),
        std::string(R"({"first_step":0,"last_step":0,"load":[[1,2]]})")}) {
    const auto file = Must(ReadLoadFile(Write("load.txt", content)));
    EXPECT_EQ(file.windows.front().load.counts()(0, 1), 2);
  }
}

TEST_F(LoadFileTest, ARecordedTraceIsReadWhole) {
  const auto file = Must(ReadLoadFile(EPLB_TEST_DATA "/moe64_aux.jsonl"));
  ASSERT_GT(file.windows.size(), 10U);
  EXPECT_EQ(file.windows.front().load.num_layers(), 8);
  EXPECT_EQ(file.windows.front().load.num_experts(), 64);
  EXPECT_GT(file.windows.back().first_step, file.windows.front().last_step);
}

TEST_F(LoadFileTest, WhatIsNoLoadIsRefusedWithItsPath) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "is empty"},
      {" \n\t", "is empty"},
      {"layer,expert\n", "is no load; tried a JSON matrix"},
      {"\x93NUM", "magic"},
      {std::string("\x93NUMPY\x01", 7), "truncated"},
      {"\xEF\xBB\xBF[[1]]", "byte order mark"},
      {std::string(100, '\0'), "is no load"},
      {"PK\x03\x04", "no whole zip archive"},
  };
  for (const auto& [content, message] : cases) {
    const absl::Status status = ReadLoadFile(Write("bad", content)).status();
    EXPECT_THAT(std::string(status.message()), StartsWith(Path("bad") + ": "));
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
  EXPECT_EQ(ReadLoadFile(Path("missing")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ReadLoadFile(Path("")).status().message()), HasSubstr("is a directory"));
}

TEST_F(LoadFileTest, FilesOfTorchAreLoadsOfSglangOrPlain) {
  const std::string recorder = EPLB_TEST_DATA "/torch/recorder.pt";
  for (const char* format : {"", "sglang"}) {
    const auto file = Must(ReadLoadFile(recorder, {.format = format}));
    ASSERT_EQ(file.windows.size(), 3U);
    EXPECT_EQ(file.windows[2].load.counts()(1, 3), 24);
    EXPECT_TRUE(file.counts_model_layers);
  }
  EXPECT_EQ(Must(ReadLoadFile(EPLB_TEST_DATA "/torch/tensor.pt")).windows[0].load.counts()(1, 0),
            8);
  EXPECT_THAT(std::string(ReadLoadFile(recorder, {.format = "vllm"}).status().message()),
              HasSubstr("recorder.pt: is a file of torch.save, which needs no --format"));
  EXPECT_THAT(std::string(ReadLoadFile(EPLB_TEST_DATA "/torch/map.pt").status().message()),
              HasSubstr("map.pt: is no tensor, and no dictionary with a tensor \"logical_count\""));
}

// DeepSeek-V3 in sglang: rows of the model's layers, of which the first are dense.
TEST_F(LoadFileTest, RowsOfDenseLayersInALoadOfSglangAreLeftOutOrSaid) {
  const std::string steps = "[[[0,0],[0,0],[1,2],[0,3]],[[0,0],[0,0],[3,4],[5,6]]]";
  const std::string keyed = Write("keyed.json", "{\"logical_count\":" + steps + "}");
  const std::string bare = Write("bare.json", steps);
  for (const LoadReading& reading : {LoadReading{}, LoadReading{.format = "sglang"}}) {
    const auto whole = Must(ReadLoadFile(keyed, reading));
    EXPECT_EQ(whole.windows.front().load.num_layers(), 4);
    EXPECT_THAT(NotesOn(keyed, whole),
                StartsWith("note: " + keyed + ": rows 0,1 look like dense layers (no tokens)"));
    EXPECT_THAT(NotesOn(keyed, whole), HasSubstr("give --first-layer 2 to leave them out"));
    const auto moe = Must(ReadLoadFile(keyed, {.format = reading.format, .layers = {.first = 2}}));
    ASSERT_EQ(moe.windows.size(), 2U);
    EXPECT_EQ(moe.windows[1].load.num_layers(), 2);
    EXPECT_EQ(moe.windows[1].load.counts()(1, 1), 6);
    EXPECT_EQ(NotesOn(keyed, moe), "");
  }
  const auto named = Must(ReadLoadFile(bare, {.format = "sglang", .layers = {.first = 3}}));
  EXPECT_EQ(named.windows[0].load.num_layers(), 1);
  EXPECT_THAT(NotesOn(bare, named), HasSubstr("row 2 is left out for --first-layer 3, though"));
  EXPECT_THAT(std::string(ReadLoadFile(keyed, {.layers = {.first = 4}}).status().message()),
              StartsWith(keyed + ": has layers 0-3, --first-layer 4 leaves none"));
}

TEST_F(LoadFileTest, TheLayersOfEveryLoadCanBeChosen) {
  for (const char* content : {"[[1,2],[3,4],[5,6]]", "[[[1,2],[3,4],[5,6]]]", "1,2\n3,4\n5,6\n",
                              R"({"format":"eplb.load.v1","load":[[1,2],[3,4],[5,6]]})",
                              R"({"first_step":0,"last_step":9,"load":[[1,2],[3,4],[5,6]]})",
                              R"({"logical_count":[[1,2],[3,4],[5,6]]})"}) {
    const std::string path = Write("load", content);
    const auto from_one = ReadLoadFile(path, {.layers = {.first = 1}});
    ASSERT_TRUE(from_one.ok()) << content << from_one.status();
    EXPECT_EQ(from_one->windows.front().load.num_layers(), 2);
    EXPECT_EQ(from_one->layers, (LayerNumbers{1, 2}));
    EXPECT_THAT(NotesOn(path, *from_one),
                HasSubstr("row 0 is left out for --first-layer 1, though"));
    const auto two = ReadLoadFile(path, {.layers = {.list = {0, 2}}});
    ASSERT_TRUE(two.ok()) << content << two.status();
    EXPECT_EQ(two->windows.front().load.counts()(1, 1), 6);
    EXPECT_EQ(NotesOn(path, *two), "");
    EXPECT_THAT(std::string(ReadLoadFile(path, {.layers = {.list = {0, 3}}}).status().message()),
                HasSubstr("load: has layers 0-2, --layers 0,3 names layer 3"));
  }
}

TEST_F(LoadFileTest, ATableThatIsNoLoadIsRefusedOrNoted) {
  const std::pair<const char*, const char*> refused[] = {
      {"0,1,2,3\n10,20,30,40\n50,60,70,80\n", "first row were a heading"},
      {"0,10,20,30\n1,50,60,70\n2,51,61,71\n3,52,62,72\n", "first column were an index"},
      {"0,0,10\n0,1,20\n1,0,30\n1,1,40\n", "long form"},
      {"[[0,0,10],[0,1,20],[1,0,30],[1,1,40]]", "long form"},
      {"7,0,0,10\n7,0,1,20\n7,1,0,30\n7,1,1,40\n", "long form"},
      {"3,0,10\n3,1,20\n4,0,30\n4,1,40\n", "long form"},
      {"3,0,10\n4,0,30\n3,1,20\n4,1,40\n", "long form"},  // by expert
      {"3,0,10\n3,2,20\n4,1,40\n5,0,30\n", "long form"},  // without the zeros
      {"7,8,0,10\n7,0,1,20\n7,9,0,30\n7,1,1,40\n", ""},
      {"0,0,0,10\n0,0,1,20\n1,0,0,30\n1,0,1,40\n", "long form"},
      {"[[3,1,0,2,7,6,5,4],[7,6,5,4,3,2,1,0]]", "looks like a placement"},
  };
  for (const auto& [content, words] : refused) {
    const absl::Status status = ReadLoadFile(Write("table.csv", content)).status();
    EXPECT_EQ(status.ok(), *words == '\0') << content;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }
  const std::pair<const char*, const char*> noted[] = {
      {"[[1,0],[0,1],[1,0]]", "holds nothing but 0 and 1"},
      {"[[0,1,2,3],[3,1,2,0]]", "looks like a placement"},
      {"[[0,1,2,3],[10,20,30,40]]", "first row were a heading"},
      {"[[1,2,1,1],[1,1,1,2]]", "number of replicas"},
  };
  for (const auto& [content, words] : noted) {
    const std::string path = Write("table.json", content);
    const auto file = Must(ReadLoadFile(path));
    EXPECT_THAT(NotesOn(path, file), HasSubstr(words));
  }
  // A word that names it a load is believed.
  for (const auto& [content, words] : noted) {
    const auto file = Must(ReadLoadFile(
        Write("load.json", std::string(R"({"format":"eplb.load.v1","load":)") + content + "}")));
    EXPECT_THAT(file.notes, ::testing::IsEmpty());
  }
}

TEST_F(LoadFileTest, LoadsOfRoutersAreNotDoubted) {
  for (const char* content :
       {"[[1,2],[3,4]]", "12,0,7,3\n0,1,5,900\n", "[[0,0,0,0],[5,5,5,5]]", "[[1,1,1,1]]",
        "[[[2,0,1],[0,3,0]],[[1,1,1],[2,1,0]]]", "0.5,0.25,0.125,0.125\n0.25,0.25,0.25,0.25\n"}) {
    const auto file = ReadLoadFile(Write("load.csv", content));
    ASSERT_TRUE(file.ok()) << content << file.status();
    EXPECT_THAT(file->notes, ::testing::IsEmpty()) << content;
  }
}

TEST_F(LoadFileTest, LayersWithGapsAreNotedWithTheirNumbers) {
  const std::string path = Write("verl.json", R"({"aggregated_load":{"1":{"0":1},"3":{"0":5}}})");
  EXPECT_THAT(NotesOn(path, *ReadLoadFile(path)), HasSubstr("the model's layers 1,3: give"));
  const auto one = Must(ReadLoadFile(path, {.format = "ascend", .layers = {.list = {3}}}));
  EXPECT_EQ(one.windows.front().load.counts()(0, 0), 5);
  EXPECT_EQ(NotesOn(path, one), "");
}

TEST_F(LoadFileTest, StepsOfABareArrayAreWindows) {
  const auto file = Must(ReadLoadFile(Write("steps.json", "[[[1,2]],[[3,4]],[[5,6]]]")));
  ASSERT_EQ(file.windows.size(), 3U);
  EXPECT_EQ(file.windows[2].first_step, 2);
  EXPECT_EQ(file.windows[2].load.counts()(0, 1), 6);
}

}  // namespace
}  // namespace eplb
