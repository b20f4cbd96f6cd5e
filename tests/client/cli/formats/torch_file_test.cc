#include "client/cli/formats/torch_file.h"

#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/cli/formats/zip_archive.h"
#include "tests/client/cli/formats/refused.h"

namespace eplb {
namespace {

// torch 2.13 wrote the files: tensor.pt is torch.arange(48).view(3, 2, 8)[:, :, ::2]; recorder.pt
// has the keys of SGLang's recorder, lists and numbers; compressed.pt is tensor.pt, zipped anew.
std::string File(const std::string& name) {
  std::ifstream file(absl::StrCat(EPLB_TEST_DATA "/torch/", name), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// tensor.pt with another pickle or other numbers, if they are given.
std::string Tensor(const std::string& pickle, const std::string& numbers = "",
                   const std::string& order = "little") {
  ZipMembers members = *ReadZip(File("tensor.pt"));
  members["tensor/byteorder"] = order;
  if (!pickle.empty()) members["tensor/data.pkl"] = pickle;
  if (!numbers.empty()) members["tensor/data/0"] = numbers;
  std::vector<ZipMember> all;
  for (const auto& [name, bytes] : members) all.push_back({name, bytes});
  return *WriteZip(all);
}

std::string PickleOfTensor() { return Must(ReadZip(File("tensor.pt")))["tensor/data.pkl"]; }

TEST(TorchFileTest, ATensorAloneIsReadWithItsStrides) {
  const std::string bytes = File("tensor.pt");
  EXPECT_TRUE(IsTorchFile(bytes));
  const TorchTensor tensor = Must(ReadTorchTensor(bytes, "logical_count"));
  EXPECT_TRUE(tensor.is_alone);
  const auto windows = Must(LoadsFromArray(tensor.array));
  ASSERT_EQ(windows.size(), 3U);
  EXPECT_EQ(windows[2].load.counts()(1, 3), 46);
}

TEST(TorchFileTest, ATensorOfADictionaryIsFoundByItsKey) {
  const TorchTensor tensor = Must(ReadTorchTensor(File("recorder.pt"), "logical_count"));
  EXPECT_FALSE(tensor.is_alone);
  EXPECT_EQ(tensor.array.shape, (std::vector<int64_t>{3, 2, 4}));
  EXPECT_EQ(Must(LoadsFromArray(tensor.array))[1].load.counts()(0, 0), 9);
}

TEST(TorchFileTest, FilesThatAreNoneOrHoldAnythingElseAreRefused) {
  const std::string good = File("tensor.pt");
  const std::string pickle = PickleOfTensor();
  const std::string shape("K\3K\2K\4\x87", 7);
  const std::string strides("K\x10K\x8K\2\x87", 7);
  const std::string minus_one("J\xFF\xFF\xFF\xFF");
  const std::string large("J\xFF\xFF\xFF\x7F");
  const std::string zero(
      "X\1\0\0\0"
      "0",
      6);
  const auto begins = [](const std::string& opcodes) { return Tensor("\x80\2" + opcodes); };
  const Refused cases[] = {
      {"Pickle", "\x80\2]q", "is a pickle or of torch before 1.6"},
      {"CutInHalf", good.substr(0, good.size() / 2), "no whole zip archive"},
      {"CutInEnd", good.substr(0, good.size() - 4), "cut off"},
      {"Zip64Members", Patched(good, "PK\6\6", 32, uint64_t{1} << 40, 8), "in zip64"},
      {"Zip64Elsewhere", Patched(good, "PK\6\7", 8, 0, 8), "in zip64"},
      {"Compressed", File("compressed.pt"), "is compressed"},
      {"BigEndian", Tensor("", "", "big"), "is big endian"},
      {"NoData", Tensor(With(pickle, zero, With(zero, "0", "1"))), "and key \"1\""},
      {"Protocol", Tensor("\x80\4N."), "is not of protocol 2"},
      {"Opcode", begins("\x8c\1a."), "has the opcode 0x8c; "},
      {"Class", begins("cos\nsystem\n."), "names os.system; "},
      {"ClassOfTorch", begins("ctorch\nload\n."), "names torch.load; "},
      {"CutInPickle", Tensor(pickle.substr(0, 60)), "is cut off"},
      {"CutInText", begins("X\xFF\xFF\xFF\x7Fhello."), "is cut off"},
      {"NoValue", begins("."), "takes values that are not there"},
      {"NoMark", begins("t."), "has no mark"},
      {"BelowMark", begins("K\1(\x85t."), "takes values that are not there"},
      {"NoMemo", begins("h\1."), "refers to a value that is not there"},
      {"AppendToNone", begins("NK\1a."), "no list or dictionary"},
      {"OddItems", begins("}(K\1u."), "no list or dictionary"},
      {"Call", begins("K\1)R."), "makes another object"},
      {"StorageOfList", begins("]Q."), "other arguments"},
      {"ManyArguments", begins("(" + std::string(9, 'N') + "tQ."), "other arguments"},
      {"List", begins("]q" + std::string(1, '\0') + "h" + std::string(1, '\0') + "a."),
       "is no tensor, and no dictionary with a tensor \"logical_count\""},
      {"OtherKey", begins("}" + With(zero, "0", "a") + "K\1s."), "is no tensor"},
      {"LargePickle", Tensor(std::string((1 << 20) + 1, 'N')),
       "one member data.pkl, of at most 1048576"},
      {"Type", Tensor(With(pickle, "LongStorage", "BoolStorage")), "type \"BoolStorage\""},
      {"NoStorage", Tensor(With(pickle, "Q", "")), "storage of type \"LongStorage\""},
      {"SizeZero", Tensor(With(pickle, shape, With(shape, "K\3", std::string("K\0", 2)))),
       "dimension of size 0"},
      {"SizeNegative", Tensor(With(pickle, shape, With(shape, "K\3", minus_one))), "of size -1"},
      {"SizeHuge", Tensor(With(pickle, shape, With(shape, "K\3K\2", large + large))), "at most"},
      {"SizeOfText", Tensor(With(pickle, shape, With(shape, "K\3", "N"))), "has the shape []"},
      {"StrideNegative", Tensor(With(pickle, strides, With(strides, "K\2", minus_one))),
       "the tensor has the shape [3, 2, 4] and the strides [16, 8, -1] from number 0 of 48"},
      {"StrideLarge", Tensor(With(pickle, strides, With(strides, "K\x10", large))), "2147483647"},
      {"StrideZero", Tensor(With(pickle, shape, With(shape, "K\3", "K\x64"))), "[100, 2, 4]"},
      {"OffsetLarge", Tensor(With(pickle, "QK" + std::string(1, '\0'), "QJ\xFF\xFF\xFF\x7F")),
       "from number 2147483647 of 48"},
      {"OffsetNegative", Tensor(With(pickle, "QK" + std::string(1, '\0'), "Q" + minus_one)),
       "from number -1 of 48"},
      {"OffsetLong", Tensor(With(pickle, "QK" + std::string(1, '\0'), "Q\x8a\1\1")),
       "from number 0 of 48"},
      {"StorageShort", Tensor("", std::string(300, '\0')), "from number 0 of 37"},
      {"Reaches", Tensor("", std::string(size_t{8} * 46, '\0')), "from number 0 of 46"},
      {"Dimensions", Tensor(With(pickle, shape, std::string("K\3K\2\x86"))), "the shape [3, 2]"},
  };
  for (const Refused& refused : cases) {
    const absl::Status status = ReadTorchTensor(refused.bytes, "logical_count").status();
    ExpectRefusal(refused, absl::Status(status.code(), absl::StrCat("f: ", status.message())));
  }
}

TEST(TorchFileTest, DamagedPicklesNeverCrash) {
  constexpr uint32_t kSeed = 7;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const std::string good = PickleOfTensor();
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string bad = good;
    bad[random() % bad.size()] = static_cast<char>(random() % 256);
    if (random() % 3 == 0) bad.resize(random() % bad.size());
    refused += ReadTorchTensor(Tensor(bad), "logical_count").ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace eplb
