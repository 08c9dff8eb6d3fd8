// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <set>

#include "files/npy_header.hpp"
#include "hyperslab/io/images.hpp"
#include "io/dataset/files.hpp"
#include "io/images/made_images.hpp"

namespace hyperslab::test {
namespace {

using testing::ElementsAre;

class OpenImages : public FilesTest {
 protected:
  static std::unique_ptr<io::ImageSet> open(const std::vector<std::string>& paths,
                                            std::int64_t classes) {
    return io::open_images(paths, {.classes = classes, .size = 16, .seed = 1});
  }
  void expect_refused(const std::string& tar, std::initializer_list<std::string> parts,
                      std::int64_t classes = 2) {
    const std::string file = write("images.tar", tar);
    expect_error(ExitCode::data, parts, [&] { (void)open({file}, classes); });
  }
  /// A packed set of two images in one shard; returns its folder.
  std::string write_packed(std::int64_t label, std::int64_t offset = 512) {
    std::filesystem::create_directory(path("packed"));
    const std::string shard =
        tar({tar_member("cat/a.ppm", make_ppm(2, 2)), tar_member("dog/b.ppm", make_ppm(3, 2))});
    const std::vector<std::int64_t> rows = {0, offset, 23, 0, 0, 1536, 29, label};
    write("packed/shard_00000.tar", shard);
    write("packed/index.npy", io::npy_header("<i8", "(2, 4)") + bytes_of(rows));
    write("packed/set.json", R"({"format": "hyperslab images", "version": 1, "images": 2,
        "classes": ["cat", "dog"], "shards": [{"file": "shard_00000.tar", "bytes": )" +
                                 std::to_string(shard.size()) + "}]}");
    return path("packed");
  }
};

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::int32_t> labels_of(const io::ImageSet& set) {
  std::vector<std::int32_t> labels;
  for (std::int64_t i = 0; i < set.size(); ++i) labels.push_back(set.label(i));
  return labels;
}

TEST_F(OpenImages, TakesLabelsFromMembersOfTheSameStem) {
  const std::string file =
      write("a.tar", tar({tar_member("0001.jpg", make_jpeg(8, 8)), tar_member("0001.cls", "7\n"),
                          tar_member("0001.json", "{}"), tar_member("0002.cls", "0"),
                          tar_member("0002.PNG", make_png(4, 4, pattern(4, 4, 3), {}))}));

  const auto set = open({file}, 10);

  EXPECT_THAT(labels_of(*set), ElementsAre(7, 0));
  EXPECT_EQ(text_of(set->bytes(0)), make_jpeg(8, 8));
  EXPECT_EQ(set->name(1), file + ": 0002.PNG");
  EXPECT_TRUE(set->classes().empty());
}

TEST_F(OpenImages, TakesClassesFromSortedFolders) {
  write("a.tar", tar({tar_member("./data/dog/", "", '5'), tar_member("./data/dog/1.ppm", "P6")}));
  write("b.tar", tar({tar_member("data/cat/images/2.ppm", "P6"), tar_member("data/._3.ppm", "")}));

  const auto set = open({path("*.tar")}, 2);

  EXPECT_THAT(labels_of(*set), ElementsAre(1, 0));
  EXPECT_THAT(set->classes(), ElementsAre("cat", "dog"));
  EXPECT_EQ(set->description(), "2 files from " + path("a.tar") + " to " + path("b.tar") +
                                    ": 2 images of 2 classes, tar");
  ASSERT_EQ(set->files().size(), 2U);
  EXPECT_EQ(set->files()[1].tokens, 1);
}

TEST_F(OpenImages, ReadsLongNames) {
  const std::string folder(120, 'f');
  const std::string name = folder + "/" + std::string(120, 'n') + ".ppm";
  const std::string record = " path=" + name + "\n";
  const std::string gnu = tar_member("././@LongLink", name + '\0', 'L');
  const std::string pax = tar_member("x", std::to_string(record.size() + 3) + record, 'x');
  const std::string short_member = tar_member(name, "P6");

  for (const std::string& before : {gnu, pax}) {
    const std::string file = write("long.tar", tar({before, short_member}));
    EXPECT_THAT(open({file}, 1)->classes(), ElementsAre(folder));
  }
}

TEST_F(OpenImages, RefusesTarsThatLeadOutOfTheFolder) {
  expect_refused(tar({tar_member("a/../../x.ppm", "P6")}), {"images.tar", "'a/../../x.ppm'"});
  expect_refused(tar({tar_member("/etc/x.ppm", "P6")}), {"'/etc/x.ppm'"});
  expect_refused(tar({tar_member("..", "", '5')}), {"'..'"});
  expect_refused(tar({tar_member("a/x.ppm", "", '2')}), {"'a/x.ppm', a symbolic link"});
  expect_refused(tar({tar_member("a/x.ppm", "", '1')}), {"a hard link"});
  expect_refused(tar({tar_member("a/x.ppm", "", '3')}), {"a device"});
}

TEST_F(OpenImages, RefusesDamagedTars) {
  const std::string whole = tar({tar_member("a/x.ppm", std::string(600, 'x'))});
  std::string flipped = whole;
  flipped[3] = '!';

  expect_refused(flipped, {"byte 0", "wrong checksum"});
  expect_refused(whole.substr(0, 1024), {"whole member 'a/x.ppm'", "512 of its 600 bytes"});
  expect_refused(whole.substr(0, 1700), {"164 bytes at the end"});
  expect_refused(whole.substr(0, 1536), {"a block of zeros at the end", "head -c 1024 /dev/zero"});
  expect_refused(whole.substr(0, 1200), {"a block of zeros at the end"});
  expect_refused("\x1F\x8B" + whole, {"compressed by gzip"});
  expect_refused(std::string(1024, '\0'), {"expected images"});
  expect_refused("", {"an empty file"});
  expect_refused(tar({tar_member("x", "99 path=a\n", 'x')}), {"records of pax"});
}

TEST_F(OpenImages, RefusesLabelsOutOfRange) {
  const std::string image = tar_member("1.ppm", "P6");

  expect_refused(tar({image, tar_member("1.cls", "2")}),
                 {"images.tar", "label 2", "1.ppm", "(model.classes), 2"});
  expect_refused(tar({image, tar_member("1.cls", "-1")}), {"number of a class in '1.cls'", "'-1'"});
  expect_refused(tar({image, tar_member("1.cls", "dog")}), {"'dog'"});
  expect_refused(tar({image, tar_member("2.cls", "1"), tar_member("2.ppm", "P6")}),
                 {"label in '1.cls'"});
  expect_refused(tar({image}), {"class of '1.ppm'"});
  expect_refused(tar({tar_member("a/1.ppm", "P6")}), {"2 class folders", "found 1"});
  expect_refused(tar({tar_member("val/val_annotations.txt", "x"), tar_member("val/1.ppm", "P6")}),
                 {"TinyImageNet", "pack-images"});
}

TEST_F(OpenImages, OpensPackedFolders) {
  const auto set = open({write_packed(1)}, 2);

  EXPECT_THAT(labels_of(*set), ElementsAre(0, 1));
  EXPECT_THAT(set->classes(), ElementsAre("cat", "dog"));
  EXPECT_EQ(text_of(set->bytes(1)), make_ppm(3, 2));
  EXPECT_EQ(set->name(1), path("packed/shard_00000.tar") + ": dog/b.ppm");
}

TEST_F(OpenImages, RefusesPackedFoldersThatDoNotFit) {
  const auto open_two = [&] { (void)open({path("packed")}, 2); };
  (void)write_packed(2);
  expect_error(ExitCode::data, {"label 2 of dog/b.ppm"}, open_two);
  (void)write_packed(1, 100);
  expect_error(ExitCode::data, {"index.npy", "byte 100"}, open_two);
  (void)write_packed(1, 1 << 20);
  expect_error(ExitCode::data, {"index.npy", "byte 1048576"}, open_two);
  write("packed/index.npy", "x");
  expect_error(ExitCode::data, {"index.npy", "shape (2, 4)"}, open_two);
  write("packed/shard_00000.tar", "x");
  expect_error(ExitCode::data, {"shard_00000.tar", "bytes, found 1"}, open_two);
  for (const char* text : {"", "[]", "{}", R"({"format": "hyperslab images", "version": 2})",
                           R"({"format": "hyperslab images", "version": 1, "classes": [1]})",
                           R"({"format": "hyperslab images", "version": 1, "classes": [],
                               "shards": [{"file": "../x", "bytes": 1}]})"}) {
    write("packed/set.json", text);
    expect_error(ExitCode::data, {"set.json"}, open_two);
  }
}

TEST_F(OpenImages, RefusesOtherFolders) {
  std::filesystem::create_directory(path("folder"));

  expect_error(ExitCode::data, {"another folder", "hyperslab pack-images --input"},
               [&] { (void)open({path("folder")}, 2); });
  expect_error(ExitCode::data, {"no image files"}, [&] { (void)open({}, 2); });
  expect_error(ExitCode::data, {"files that match this pattern"},
               [&] { (void)open({path("*.tar")}, 2); });
}

TEST_F(OpenImages, FingerprintsShowEveryChange) {
  const auto fingerprint = [&] { return open({path("packed")}, 2)->fingerprint(); };
  (void)write_packed(1);
  const std::uint64_t before = fingerprint();
  EXPECT_EQ(fingerprint(), before);

  (void)write_packed(0);
  EXPECT_NE(fingerprint(), before);
}

TEST_F(OpenImages, ClassesOfValidationAreThoseOfTraining) {
  const auto tar_of = [&](const std::string& name, const std::string& a, const std::string& b) {
    return open(
        {write(name, tar({tar_member(a + "/1.ppm", "P6"), tar_member(b + "/2.ppm", "P6")}))}, 2);
  };
  const auto train = tar_of("train.tar", "cat", "dog");
  const auto other = tar_of("other.tar", "cat", "horse");
  const auto unnamed =
      open({write("cls.tar", tar({tar_member("1.ppm", "P6"), tar_member("1.cls", "0")}))}, 2);

  EXPECT_NO_THROW(io::require_same_classes(*train, *tar_of("same.tar", "dog", "cat")));
  EXPECT_NO_THROW(io::require_same_classes(*train, *unnamed));
  expect_error(ExitCode::data, {"other.tar", "'dog' as number 1", "found 'horse'", "--classes"},
               [&] { io::require_same_classes(*train, *other); });
}

TEST_F(OpenImages, NoticesChangedFiles) {
  const auto set = open({write_packed(1)}, 2);
  EXPECT_NO_THROW(set->require_unchanged());

  write("packed/index.npy", std::string(192, 'x') + "y");

  expect_error(ExitCode::data, {"index.npy", "expected the 192 bytes"},
               [&] { set->require_unchanged(); });
}

TEST(DrawnImages, AreLearnableAndDecode) {
  const auto set = io::open_images({"synthetic"}, {.classes = 10, .size = 32, .seed = 1});

  EXPECT_EQ(set->size(), 512);
  EXPECT_EQ(set->label(13), 3);
  EXPECT_EQ(set->classes().size(), 10U);
  EXPECT_EQ(std::set(set->classes().begin(), set->classes().end()).size(), 10U);
  const io::ImageHeader header = io::read_image_header(set->bytes(511));
  EXPECT_EQ(header.size(), (image::ImageSize{32, 32}));
  std::vector<std::uint8_t> rgb(32 * 32 * 3);
  io::ImageDecoder().decode(set->bytes(511), header, header.size(), rgb);
  EXPECT_GT(std::set(rgb.begin(), rgb.end()).size(), 20U);
}

TEST(DrawnImages, FollowTheSeed) {
  const auto drawn = [](std::uint64_t seed) {
    return io::open_images({"synthetic"}, {.classes = 4, .size = 16, .seed = seed});
  };
  const auto first = drawn(1);

  EXPECT_EQ(text_of(first->bytes(9)), text_of(drawn(1)->bytes(9)));
  EXPECT_NE(text_of(first->bytes(9)), text_of(drawn(2)->bytes(9)));
  EXPECT_NE(text_of(first->bytes(9)), text_of(first->bytes(13)));
  EXPECT_NE(first->fingerprint(), drawn(2)->fingerprint());
}

}  // namespace
}  // namespace hyperslab::test
