#include "client/cli/formats/trtllm_format.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/client/cli/formats/npy_bytes.h"
#include "tests/client/cli/formats/random_placement.h"
#include "tests/client/cli/formats/refused.h"
#include "tests/client/cli/formats/safetensors_bytes.h"
#include "tests/client/cli/formats/test_files.h"

namespace eplb {

namespace {

using ::testing::HasSubstr;

constexpr char kGoodTrtllm[] =
    "num_slots: 3\nlayer_updates_per_iter: 0\ninitial_global_assignments:\n"
    "  3: [0, 1, 0]\n  4: [1, 1, 0]\n  5: [0, 1, 1]\n";

TEST(TrtllmFormatTest, KeysAreTheModelsLayersInAnyOrder) {
  for (const std::string& text :
       {std::string(kGoodTrtllm),
        std::string("initial_global_assignments:\n  5:\n  - 0\n  - 1\n  - 1\n  3: [0,1,0]\n"
                    "  4: [1,1,0]\nnum_slots: 3 # of all ranks\nunknown: {a: [1, x]}\n"),
        std::string(R"({"num_slots":3,"initial_global_assignments":)"
                    R"({"3":[0,1,0],"4":[1,1,0],"5":[0,1,1]}})")}) {
    const auto parts = ParseTrtllmPlacement("f", text);
    ASSERT_TRUE(parts.ok()) << parts.status();
    EXPECT_EQ(parts->layers, (LayerNumbers{3, 4, 5}));
    ASSERT_EQ(parts->slots.rows(), 3);
    EXPECT_EQ(parts->slots(1, 0), 1);
    EXPECT_EQ(parts->slots(2, 2), 1);
  }
}

TEST(TrtllmFormatTest, LayersMayHaveGapsAndRowsImplyTheNumberOfSlots) {
  const auto parts = ParseTrtllmPlacement(
      "f", "initial_global_assignments:\n  5: [0, 1, 1]\n  1: [0, 1, 0]\n  3: [1, 1, 0]\n");
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ(parts->layers, (LayerNumbers{1, 3, 5}));
  ASSERT_EQ(parts->slots.cols(), 3);
  EXPECT_EQ(parts->slots(1, 0), 1);
  EXPECT_EQ(
      *WriteTrtllmPlacement(*MakePlacement(*parts, {}), {.path = {}, .layers = parts->layers}),
      "num_slots: 3\nlayer_updates_per_iter: 0\ninitial_global_assignments:\n"
      "  1: [0, 1, 0]\n  3: [1, 1, 0]\n  5: [0, 1, 1]\n");
}

TEST(TrtllmFormatTest, DeepSeekV3HasLayers3To60) {
  const Topology topology =
      *Topology::Make({.num_layers = 58, .num_experts = 256, .num_slots = 288, .num_gpus = 32});
  const auto yaml =
      WriteTrtllmPlacement(Placement::Static(topology), {.path = {}, .layers = Consecutive(3, 58)});
  ASSERT_TRUE(yaml.ok());
  EXPECT_THAT(*yaml, HasSubstr("\n  3: ["));
  EXPECT_THAT(*yaml, HasSubstr("\n  60: ["));
  EXPECT_THAT(*yaml, ::testing::Not(HasSubstr("\n  61: [")));
  const auto parts = ParseTrtllmPlacement("f", *yaml);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ(*MakePlacement(*parts, {.num_gpus = 32}), Placement::Static(topology));
  const absl::Status unknown = WriteTrtllmPlacement(Placement::Static(topology), {}).status();
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("--first-layer"));
}

TEST(TrtllmFormatTest, WhatIsNoneIsRefused) {
  const std::string good = kGoodTrtllm;
  std::string bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string before = absl::StrCat("*a", i - 1);
    absl::StrAppend(&bomb, "a", i, ": &a", i, " [", before);
    for (int j = 0; j < 8; ++j) bomb += "," + before;
    bomb += "]\n";
  }
  const Refused cases[] = {
      {"Empty", "", "empty"},
      {"Comment", "# nothing\n", "empty"},
      {"Scalar", "hello", "expected YAML with num_slots"},
      {"List", "- 1\n- 2\n", "expected YAML with num_slots"},
      {"Truncated", good.substr(0, good.size() - 3), "not YAML"},
      {"Tab", With(good, "  3:", "\t3:"), "not YAML"},
      {"Brackets", std::string(100000, '['), "not YAML"},
      {"Braces", "a: " + std::string(100000, '{'), "not YAML"},
      {"Nested", std::string(40, '[') + std::string(40, ']'), "nested deeper"},
      {"Bomb", bomb + good, "line 1, column"},
      {"Alias", With(With(good, "[0, 1, 0]", "&row [0, 1, 0]"), "[0, 1, 1]", "*row"),
       "line 4, column"},
      {"MergeKey", "base: &b {num_slots: 3}\n<<: *b\n", "an anchor"},
      {"Tag", With(good, "num_slots: 3", "num_slots: !!python/object:os.system 3"), "a tag"},
      {"Documents", good + "---\n" + good, "more than one YAML document"},
      {"KeyTwice", With(good, "  4:", "  3:"), "key \"3\" is given twice"},
      {"TopKeyTwice", "num_slots: 3\n" + good, "key \"num_slots\" is given twice"},
      {"ListAsKey", "? [1, 2]\n: 3\n" + good, "a key that is no single word"},
      {"NullAsKey", "~: 3\n" + good, "a key that is null"},
      {"SlotsText", With(good, "num_slots: 3", "num_slots: \"3\""), "num_slots is a string"},
      {"SlotsReal", With(good, "num_slots: 3", "num_slots: 3.0"), "num_slots is a string"},
      {"SlotsZero", With(good, "num_slots: 3", "num_slots: 0"), "num_slots is 0"},
      {"SlotsHuge", With(good, "num_slots: 3", "num_slots: 1000000000"),
       "layer 3 has 3 entries, expected 1000000000 slots"},
      {"UpdatesNegative", With(good, "iter: 0", "iter: -1"), "layer_updates_per_iter is -1"},
      {"NoSlotsAtAll", "initial_global_assignments: {3: []}\n", "layer 3 has no entries"},
      {"NoAssignments", "num_slots: 3\n", "initial_global_assignments is missing"},
      {"AssignmentsNull", "num_slots: 3\ninitial_global_assignments:\n", "is null"},
      {"AssignmentsList", "num_slots: 3\ninitial_global_assignments: [[0,1,0]]\n", "is an array"},
      {"AssignmentsEmpty", "num_slots: 3\ninitial_global_assignments: {}\n", "has no layers"},
      {"Short", With(good, "[1, 1, 0]", "[1, 0]"), "layer 4 has 2 entries, expected 3"},
      {"Long", With(good, "[1, 1, 0]", "[1, 1, 0, 0]"), "layer 4 has 4 entries"},
      {"KeyText", With(good, "  4:", "  four:"), "key \"four\", expected a layer number"},
      {"KeyNegative", With(good, "  4:", "  -4:"), "key \"-4\""},
      {"KeyPadded", With(good, "  4:", "  \"04\":"), "key \"04\""},
      {"KeyHuge", With(good, "  4:", "  99999999999:"), "key \"99999999999\""},
      {"Nan", With(good, "[1, 1, 0]", "[1, .nan, 0]"), "layer 4[1] is a string"},
      {"Real", With(good, "[1, 1, 0]", "[1, 1.5, 0]"), "layer 4[1] is a string"},
      {"Octal", With(good, "[1, 1, 0]", "[1, 01, 0]"), "layer 4[1] is a string"},
      {"Negative", With(good, "[1, 1, 0]", "[1, -3, 0]"), "layer 4 slot 1 is -3"},
      {"Huge", With(good, "[1, 1, 0]", "[1, 99999999999, 0]"), "layer 4 slot 1 is 99999999999"},
      {"AboveInt64", With(good, "[1, 1, 0]", "[1, 99999999999999999999, 0]"),
       "[1] is 99999999999999999999, expected -1..2^31-1"},
      {"RowScalar", With(good, "[1, 1, 0]", "7"), "layer 4 is an integer"},
      {"NotUtf8", With(good, "num_slots", "\xff\xfe"), "f: "},
      {"Nul", good + std::string(3, '\0'), "f: "},
  };
  for (const Refused& refused : cases) {
    ExpectRefusal(refused, ParseTrtllmPlacement("f", refused.bytes).status());
  }
}

TEST(TrtllmFormatTest, AnExpertOutOfRangeIsNamedWithItsPlace) {
  const auto parts = ParseTrtllmPlacement("f", With(kGoodTrtllm, "[1, 1, 0]", "[1, 2, 9]"));
  ASSERT_TRUE(parts.ok());
  EXPECT_THAT(std::string(MakePlacement(*parts, {}).status().message()),
              HasSubstr("layer 1 slot 2 holds expert 9, but 3 slots hold experts 0..2"));
}

TEST(TrtllmFormatTest, TheBalancerInTheOptionsOfTheLlmApiIsFound) {
  const std::string options =
      "backend: pytorch\nmoe_config:\n  backend: WIDEEP\n  load_balancer:\n    num_slots: 2\n"
      "    layer_updates_per_iter: 0\n    initial_global_assignments:\n      3: [1, 0]\n";
  const auto parts = ParseTrtllmPlacement("f", options);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ(parts->slots(0, 0), 1);
  EXPECT_EQ(parts->layers, LayerNumbers{3});
  const Refused cases[] = {
      {"Path", "moe_config:\n  load_balancer: ./balancer.yaml\n",
       "moe_config.load_balancer names the file \"./balancer.yaml\", expected that file itself"},
      {"None", "moe_config:\n  backend: x\n",
       "has neither initial_global_assignments nor moe_config.load_balancer"},
      {"List", "moe_config:\n  load_balancer: [1]\n", "expected the keys of a balancer"},
      {"Keys", "moe_config:\n  load_balancer: {a: 1}\n", "initial_global_assignments is missing"},
  };
  for (const Refused& refused : cases) {
    ExpectRefusal(refused, ParseTrtllmPlacement("f", refused.bytes).status());
  }
}

using ::testing::HasSubstr;

using Tensors = std::map<std::string, std::vector<int64_t>>;

std::string FileOf(const Tensors& tensors) {
  std::string header;
  std::string data;
  for (const auto& [name, numbers] : tensors) {
    const size_t begin = data.size();
    data += Bytes(numbers);
    absl::StrAppend(&header, header.empty() ? "{" : ",", "\"", name,
                    R"(":{"dtype":"I64","shape":[)", numbers.size(), "],\"data_offsets\":[", begin,
                    ",", data.size(), "]}");
  }
  return SafetensorsBytes(header.empty() ? "{}" : header + "}", data);
}

class TrtllmStatisticsTest : public FilesTest {
 protected:
  void SetUp() override {
    FilesTest::SetUp();
    Write("meta_info.json", R"({"num_experts":2,"num_experts_per_token":1})");
  }
  // Two ranks, iterations 9 and 10 (whose names sort the other way), layers 3 and 4.
  void WriteGood() {
    Write("rank0.safetensors",
          FileOf({{"9_3", {1, 2}}, {"9_4", {3, 4}}, {"10_3", {5, 6}}, {"10_4", {7, 8}}}));
    Write("rank1.safetensors",
          FileOf({{"9_3", {10, 20}}, {"9_4", {30, 40}}, {"10_3", {50, 60}}, {"10_4", {70, 80}}}));
  }
  // The message, which must name `file` of the directory.
  std::string Refusal(const std::string& file) {
    const absl::Status status = ReadTrtllmStatistics(Path("")).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(file + ": "));
    return std::string(status.message());
  }
};

TEST_F(TrtllmStatisticsTest, RanksAreAddedAndIterationsAreWindows) {
  WriteGood();
  EXPECT_TRUE(IsTrtllmStatistics(Path("")));
  const auto file = ReadTrtllmStatistics(Path(""));
  ASSERT_TRUE(file.ok()) << file.status();
  const std::vector<LoadWindow>& windows = file->windows;
  ASSERT_EQ(windows.size(), 2U);
  EXPECT_EQ(windows[0].first_step, 9);
  EXPECT_EQ(windows[1].last_step, 10);
  EXPECT_EQ(file->layers, (LayerNumbers{3, 4}));
  EXPECT_EQ(windows[0].load.counts()(1, 0), 33);
  EXPECT_EQ(windows[1].load.counts()(0, 1), 66);
}

TEST_F(TrtllmStatisticsTest, AnotherDirectoryOrAFileIsRefused) {
  EXPECT_FALSE(IsTrtllmStatistics(Path("missing")));
  EXPECT_FALSE(IsTrtllmStatistics(Path("meta_info.json")));
  EXPECT_THAT(std::string(ReadTrtllmStatistics(Path("meta_info.json")).status().message()),
              HasSubstr("meta_info.json: is no directory"));
  EXPECT_THAT(Refusal(""), HasSubstr("rank0.safetensors is missing"));
}

TEST_F(TrtllmStatisticsTest, WhatMetaInfoSaysMustHold) {
  WriteGood();
  const std::pair<const char*, const char*> cases[] = {
      {"{}", "num_experts is missing"},
      {"{\"num_experts\":2", "line 1"},
      {"[]", "num_experts is missing"},
      {R"({"num_experts":"2"})", "num_experts is a string"},
      {R"({"num_experts":0})", "num_experts is 0"},
      {R"({"num_experts":1000000000})", "num_experts is 1000000000"},
      {R"({"num_experts":2,"num_experts":2})", "given twice"},
      {R"({"num_experts":2,"ep_size":"x"})", "ep_size is a string"},
  };
  for (const auto& [meta, message] : cases) {
    Write("meta_info.json", meta);
    EXPECT_THAT(Refusal("meta_info.json"), HasSubstr(message));
  }
  Write("meta_info.json", R"({"num_experts":2,"ep_size":3})");
  EXPECT_THAT(Refusal(""), HasSubstr("rank2.safetensors is missing, expected the files of 3"));
  Write("meta_info.json", R"({"num_experts":2,"ep_size":1})");
  EXPECT_THAT(Refusal(""), HasSubstr("files of 2 ranks, meta_info.json has ep_size 1"));
  Write("meta_info.json", R"({"num_experts":3})");
  EXPECT_THAT(Refusal("rank0.safetensors"), HasSubstr("expected \"I64\" [3] in 24"));
}

TEST_F(TrtllmStatisticsTest, AMissingRankIsNamed) {
  WriteGood();
  std::filesystem::rename(Path("rank1.safetensors"), Path("rank2.safetensors"));
  EXPECT_THAT(Refusal(""), HasSubstr("rank1.safetensors is missing"));
  std::filesystem::rename(Path("rank2.safetensors"), Path("rank2147483647.safetensors"));
  EXPECT_THAT(Refusal(""), HasSubstr("rank1.safetensors is missing"));
}

TEST_F(TrtllmStatisticsTest, ABrokenRankFileIsNamed) {
  WriteGood();
  const std::string good = Read(Path("rank1.safetensors"));
  const Tensors tensors = {
      {"9_3", {10, 20}}, {"9_4", {30, 40}}, {"10_3", {50, 60}}, {"10_4", {70, 80}}};
  auto with = [&tensors](const std::string& key, const std::vector<int64_t>& numbers) {
    Tensors changed = tensors;
    changed[key] = numbers;
    return FileOf(changed);
  };
  auto without = [&tensors](const std::string& key) {
    Tensors changed = tensors;
    changed.erase(key);
    return FileOf(changed);
  };
  auto renamed = [&tensors](const std::string& key, const std::string& to) {
    Tensors changed = tensors;
    changed[to] = changed[key];
    changed.erase(key);
    return FileOf(changed);
  };
  std::string other_type = good;
  other_type.replace(other_type.find("I64"), 3, "F64");
  const std::pair<std::string, const char*> cases[] = {
      {"", "truncated"},
      {good.substr(0, good.size() - 8), "data_offsets"},
      {with("9_4", {30, -40}), "9_4 expert 1 is -40, counts are >= 0"},
      {with("9_4", {30, INT64_MAX}), "the sum over ranks is above 2^63-1"},
      {with("9_4", {30, 40, 50}), "9_4 is \"I64\" of 3 numbers"},
      {with("9_5", {1, 1}), "has 9_5, which rank0.safetensors has not"},
      {without("9_4"), "has 3 tensors, rank0.safetensors has 4"},
      {renamed("9_4", "9-4"), "the tensor \"9-4\", expected \"iteration_layer\""},
      {renamed("9_4", "9_04"), "\"9_04\""},
      {renamed("9_4", "-9_4"), "\"-9_4\""},
      {renamed("9_4", "9_99999999999"), "\"9_99999999999\""},
      {other_type, "is \"F64\" of 2 numbers"},
  };
  for (const auto& [bytes, message] : cases) {
    Write("rank1.safetensors", bytes);
    EXPECT_THAT(Refusal("rank1.safetensors"), HasSubstr(message));
  }
}

TEST_F(TrtllmStatisticsTest, LayersMayHaveGapsAndAreTheSameInEveryIteration) {
  Write("rank0.safetensors", FileOf({{"9_1", {1, 2}}, {"9_5", {3, 4}}}));
  const auto file = ReadTrtllmStatistics(Path(""));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->layers, (LayerNumbers{1, 5}));
  EXPECT_EQ(file->windows.front().load.counts()(1, 0), 3);
  Write("rank0.safetensors", FileOf({{"9_3", {1, 2}}, {"9_4", {3, 4}}, {"10_3", {5, 6}}}));
  EXPECT_THAT(Refusal(""), HasSubstr("iteration 10 has layers 3, iteration 9 has 3,4"));
  Write("rank0.safetensors", FileOf({{"9_3", {1, 2}}, {"10_4", {5, 6}}}));
  EXPECT_THAT(Refusal(""), HasSubstr("iteration 10 has layers 4, iteration 9 has 3"));
  Write("rank0.safetensors", FileOf({}));
  EXPECT_THAT(Refusal(""), HasSubstr("holds no counts"));
  Write("rank0.safetensors", FileOf({{"9_3", {INT64_MAX, 1}}}));
  EXPECT_THAT(Refusal(""), HasSubstr("iteration 9: load: the sum of layer 0"));
}

constexpr char kHeader[] =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I64","shape":[1],"data_offsets":[16,24]},)"
    R"("a":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}})";

TEST(SafetensorsTest, TensorsAreFoundWhereTheHeaderSays) {
  const std::string data = "0123456789abcdefABCDEFGH";
  const std::string file = SafetensorsBytes(std::string(kHeader) + "   ", data);
  const auto tensors = ParseSafetensors(file);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 2U);
  EXPECT_EQ((*tensors)[0].name, "b");
  EXPECT_EQ((*tensors)[0].data, "ABCDEFGH");
  EXPECT_EQ((*tensors)[1].dtype, "I64");
  EXPECT_EQ((*tensors)[1].shape, std::vector<int64_t>{2});
  EXPECT_EQ((*tensors)[1].data, "0123456789abcdef");
}

TEST(SafetensorsTest, WhatIsNoneIsRefused) {
  const std::string data(24, '\0');
  const std::string header = kHeader;
  auto with = [&](const std::string& from, const std::string& to) {
    return SafetensorsBytes(With(header, from, to), data);
  };
  const std::string good = SafetensorsBytes(header, data);
  std::string huge = good;
  huge[7] = '\x7f';
  const Refused cases[] = {
      {"Empty", "", "truncated in the header's length"},
      {"CutInLength", good.substr(0, 7), "truncated in the header's length"},
      {"CutInHeader", good.substr(0, 50), "truncated in the header: it claims"},
      {"HugeHeader", huge, "truncated in the header: it claims"},
      {"CutInData", good.substr(0, good.size() - 1), "data_offsets are not"},
      {"Trailing", good + "x", "has 25 bytes of numbers, the header claims 24"},
      {"NoJson", SafetensorsBytes("{hello}", ""), "header: line 1"},
      {"NoObject", SafetensorsBytes("[1]", ""), "header is no JSON object"},
      {"KeyTwice", with("\"b\"", "\"a\""), "key \"a\" is given twice"},
      {"NoDtype", with("\"dtype\"", "\"type\""), "tensor \"b\": dtype is missing"},
      {"NoOffsets", with("data_offsets", "offsets"), "tensor \"b\": data_offsets is missing"},
      {"TensorIsNumber", with("{\"format\":\"pt\"},\"b\":", "{},\"c\":7,\"b\":"),
       "tensor \"c\": dtype is missing"},
      {"HugeOffset", with("[16,24]", "[16,1000000000]"), "two rising numbers in 0..24"},
      {"Backwards", with("[16,24]", "[24,16]"), "two rising numbers"},
      {"Negative", with("[16,24]", "[-8,24]"), "two rising numbers"},
      {"ThreeOffsets", with("[16,24]", "[16,20,24]"), "two rising numbers"},
      {"Overlap", with("[16,24]", "[8,24]"), "tensor \"b\" begins at byte 8, the one before ends"},
      {"Gap", with("[0,16]", "[0,8]"), "tensor \"b\" begins at byte 16, the one before ends at"},
      {"ManyDimensions", with("[1]", "[1,1,1,1,1,1,1,1,1]"), "no list of up to 8 integers"},
      {"RealShape", with("[1]", "[1.5]"), "no list of up to 8 integers"},
  };
  for (const Refused& refused : cases) {
    const absl::Status status = ParseSafetensors(refused.bytes).status();
    ExpectRefusal(refused, absl::Status(status.code(), "f: " + std::string(status.message())));
  }
}

TEST(SafetensorsTest, RandomDamageIsReadOrRefused) {
  constexpr uint64_t kSeed = 41;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  const std::string good = SafetensorsBytes(kHeader, std::string(24, '\0'));
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = good;
    bytes[random() % bytes.size()] =
        static_cast<char>(random() % 2 == 0 ? "0123456789-,[]{}\""[random() % 17] : random());
    const auto tensors = ParseSafetensors(bytes);
    if (!tensors.ok()) continue;
    for (const SafeTensor& tensor : *tensors) {
      EXPECT_GE(tensor.data.data(), bytes.data());
      EXPECT_LE(tensor.data.data() + tensor.data.size(), bytes.data() + bytes.size());
    }
  }
}

}  // namespace

}  // namespace eplb
