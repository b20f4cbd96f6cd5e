#include <gmock/gmock.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/cli/formats/engine_formats.h"
#include "client/cli/formats/load_file.h"
#include "tests/client/cli/formats/refused.h"
#include "tests/client/cli/formats/test_files.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using ChoicesTest = FilesTest;

std::string Line(int64_t step, int64_t layer, const std::string& indices,
                 const std::string& more = "") {
  return absl::StrCat(R"({"step":)", step, R"(,"stage":"pre_dispatch","layer":)", layer, more,
                      R"(,"top_indices":)", indices, "}\n");
}

TEST_F(ChoicesTest, TracesInADirectoryAreSummedOverRanks) {
  const std::string one =
      Write("router_trace_rank0.jsonl",
            Line(7, 4, "[[0,1],[1,2]]") + Line(7, 2, "[[0,1]]") + Line(9, 2, "[[0,-1]]"));
  Write("router_trace_rank10.jsonl", Line(7, 2, "[[0,2]]") + Line(9, 4, "[]"));
  Write("router_trace_rank.jsonl", "no trace");
  for (const LoadReading& reading :
       {LoadReading{.experts = 3}, LoadReading{.format = "megatron", .experts = 3}}) {
    const LoadFile sum = Must(ReadLoadFile(Path(""), reading));
    ASSERT_EQ(sum.windows.size(), 2U);
    EXPECT_EQ(sum.windows[1].first_step, 9);
    LoadMatrix expected(2, 3);
    expected << 2, 1, 1, 1, 2, 1;  // layer 2, layer 4
    EXPECT_TRUE((sum.windows[0].load.counts() == expected).all());
    EXPECT_THAT(sum.layers, ElementsAre(2, 4));
    EXPECT_THAT(NotesOn("d", sum),
                HasSubstr("3 of 4 pairs of a step and a layer are not in the files of all ranks"));
    EXPECT_EQ(Must(ReadLoadFile(one, reading)).windows[1].load.counts()(0, 0), 1);
  }
}

TEST_F(ChoicesTest, HeadsAreRowsBehindTheDecodersAndHaveNoNumbers) {
  const LoadFile file = Must(ReadRouterTraces(
      Write("t", Line(0, 0, "[[2]]", R"(,"block":"mtp","mtp_idx":1)") +
                     Line(0, 1, "[[0]]", R"(,"block":"decoder")") + Line(0, 1, "[[0]]")),
      3));
  EXPECT_THAT(file.layers, IsEmpty());
  EXPECT_EQ(file.windows[0].load.counts()(0, 0), 2);
  EXPECT_EQ(file.windows[0].load.counts()(1, 2), 1);
}

TEST_F(ChoicesTest, BadTracesAreRefusedByLine) {
  const std::string good = Line(0, 1, "[[0]]");
  const std::pair<std::string, std::string> cases[] = {
      {good + "{", "line 2: column"},
      {good + "[1]", "line 2: step is missing"},
      {good + Line(-1, 1, "[[0]]"), "line 2: step is -1, expected >= 0"},
      {good + Line(0, 1, "[[0],[1,2]]"), "line 2: top_indices has tokens of different numbers"},
      {good + Line(0, 1, "[[0.9]]"), "line 2: top_indices[0][0] is 0.9, expected an integer"},
      {good + Line(0, 1, "[[true]]"), "line 2: top_indices[0][0] is a boolean"},
      {good + Line(0, 1, "[[9]]"), "line 2: has expert 9 in layer 1, --experts is 4"},
      {good + Line(0, 1, "[0]"), "line 2: top_indices has 1 levels"},
      {good + R"({"step":0,"layer":0})", "line 2: top_indices is missing"},
      {good + Line(0, 1, "[[0]]", R"(,"block":3)"), "line 2: block is an integer"},
      {"\n", "has no line"}};
  for (const auto& [bytes, message] : cases) {
    const std::string path = Write("router_trace_rank0.jsonl", bytes);
    ExpectRefusal(
        {bytes, bytes, message},
        absl::Status(ReadRouterTraces(path, 4).status().code(),
                     With(std::string(ReadRouterTraces(path, 4).status().message()), path, "f")));
  }
  const std::string path = Write("t", good);
  EXPECT_THAT(std::string(ReadLoadFile(path).status().message()), HasSubstr("give --experts"));
  EXPECT_THAT(std::string(ReadLoadFile(path, {.experts = 1 << 17}).status().message()),
              HasSubstr("--experts is 131072, expected 1..65536"));
  std::string many;
  for (int step = 0; step < 1100; ++step) many += Line(step, 0, "[[0]]");
  EXPECT_THAT(std::string(ReadRouterTraces(Write("t", many), 1 << 16).status().message()),
              HasSubstr("line 1025: has 1025 rows of 65536 experts, at most 67108864 counts"));
}

TEST_F(ChoicesTest, ATensorOfChoicesIsCountedIfTheNumberOfExpertsIsGiven) {
  const std::string path = EPLB_TEST_DATA "/torch/choices.pt";
  const LoadFile file = Must(ReadLoadFile(path, {.experts = 4}));
  LoadMatrix expected(2, 4);
  expected << 1, 0, 1, 2, 1, 2, 0, 0;
  EXPECT_TRUE((file.windows[0].load.counts() == expected).all());
  const std::pair<std::string, std::string> refused[] = {
      {path, "choices.pt: has expert 3 in layer 0, --experts is 3"},
      {EPLB_TEST_DATA "/torch/recorder.pt", "recorder.pt: has 4 experts, --experts is 3"}};
  for (const auto& [name, message] : refused) {
    EXPECT_THAT(std::string(ReadLoadFile(name, {.experts = 3}).status().message()),
                HasSubstr(message));
  }
}

}  // namespace
}  // namespace eplb
