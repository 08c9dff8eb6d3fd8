// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/pack_images.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "hyperslab/io/images.hpp"
#include "io/dataset/files.hpp"
#include "io/images/made_images.hpp"
#include "support/nth_fault.hpp"

namespace hyperslab::test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class PackImages : public FilesTest {
 protected:
  void put(const std::string& name, std::string_view content) {
    fs::create_directories(fs::path(path(name)).parent_path());
    write(name, content);
  }
  [[nodiscard]] io::ImagePacking packing(const std::string& input) const {
    io::ImagePacking packing;
    packing.inputs = {path(input)};
    packing.output = path("packed");
    packing.threads = 2;
    return packing;
  }
  static std::unique_ptr<io::ImageSet> open(const std::string& folder, std::int64_t classes) {
    return io::open_images({folder}, {.classes = classes, .size = 8, .seed = 1});
  }
  /// "label bytes" of every image of the packed set.
  [[nodiscard]] std::vector<std::pair<std::int32_t, std::string>> images(
      std::int64_t classes) const {
    const auto set = open(path("packed"), classes);
    std::vector<std::pair<std::int32_t, std::string>> out;
    for (std::int64_t i = 0; i < set->size(); ++i) {
      const auto bytes = set->bytes(i);
      out.emplace_back(set->label(i),
                       std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    }
    return out;
  }
  [[nodiscard]] nlohmann::json set_json() const {
    return nlohmann::json::parse(content("packed/set.json"));
  }
  void expect_refused(ExitCode code, const io::ImagePacking& packing,
                      std::initializer_list<std::string> parts) const {
    expect_error(code, parts, [&] { (void)io::pack_images(packing); });
    for (const auto& entry : fs::directory_iterator(folder_)) {
      EXPECT_THAT(entry.path().string(), testing::Not(HasSubstr("packed.")));
    }
  }
  void put_two_classes() {
    put("in/dog/b.PNG", make_png(4, 6, pattern(4, 6, 3), {}));
    put("in/dog/deeper/a.jpg", make_jpeg(8, 5));
    put("in/cat/c.ppm", make_ppm(3, 2));
    put("in/cat/notes.txt", "x");
  }
};

TEST_F(PackImages, TakesClassFoldersInTheirOrder) {
  put_two_classes();

  const io::PackedImages packed = io::pack_images(packing("in"));

  EXPECT_EQ(packed.images, 3);
  EXPECT_THAT(packed.classes, ElementsAre("cat", "dog"));
  EXPECT_THAT(packed.class_images, ElementsAre(1, 2));
  EXPECT_EQ(packed.least, (image::ImageSize{3, 2}));
  EXPECT_EQ(packed.most, (image::ImageSize{8, 6}));
  EXPECT_EQ(packed.other_files, 1);
  EXPECT_THAT(images(2), ElementsAre(std::pair(0, make_ppm(3, 2)),
                                     std::pair(1, make_png(4, 6, pattern(4, 6, 3), {})),
                                     std::pair(1, make_jpeg(8, 5))));
  EXPECT_EQ(open(path("packed"), 2)->name(2), path("packed/shard_00000.tar") + ": dog/a.jpg");
}

TEST_F(PackImages, PackedShardsAreTarFilesToo) {
  put_two_classes();
  (void)io::pack_images(packing("in"));

  const auto set = open(path("packed/*.tar"), 2);

  EXPECT_EQ(set->size(), 3);
  EXPECT_THAT(set->classes(), ElementsAre("cat", "dog"));
}

TEST_F(PackImages, BeginsAShardWhenOneIsFull) {
  for (int i = 0; i < 6; ++i) put("in/a/" + std::to_string(i) + ".ppm", make_ppm(20, 20));
  io::ImagePacking two = packing("in");
  two.shard_bytes = 2 * (512 + 1536) + 1024;

  EXPECT_EQ(io::pack_images(two).shards, 3);

  EXPECT_EQ(images(1).size(), 6U);
  EXPECT_EQ(images(1).back().second, make_ppm(20, 20));
  const nlohmann::json set = set_json();
  for (const auto& shard : set["shards"]) {
    EXPECT_LE(shard["bytes"], two.shard_bytes);
    EXPECT_EQ(shard["images"], 2);
  }
}

TEST_F(PackImages, TheSameInputGivesTheSameBytes) {
  put_two_classes();
  (void)io::pack_images(packing("in"));
  io::ImagePacking again = packing("in");
  again.output = path("again");
  again.threads = 1;
  (void)io::pack_images(again);

  for (const char* file : {"shard_00000.tar", "index.npy", "set.json"}) {
    EXPECT_EQ(content(std::string("packed/") + file), content(std::string("again/") + file));
  }
}

TEST_F(PackImages, ValidationHasTheClassesOfTraining) {
  put("in/train/a/1.ppm", make_ppm(2, 2));
  put("in/train/b/1.ppm", make_ppm(2, 2));
  put("in/val/b/2.ppm", make_ppm(3, 3));
  io::ImagePacking validation = packing("in");
  expect_refused(ExitCode::usage, validation, {"--split train or --split validation"});
  validation.split = io::ImageSplit::validation;

  (void)io::pack_images(validation);

  EXPECT_THAT(images(2), ElementsAre(std::pair(1, make_ppm(3, 3))));
}

TEST_F(PackImages, TakesNamesOfClasses) {
  put_two_classes();
  io::ImagePacking named = packing("in");
  named.classes = write("names.txt", "dog\r\ncat\n\n");

  EXPECT_THAT(io::pack_images(named).classes, ElementsAre("dog", "cat"));

  EXPECT_EQ(images(2).front().first, 1);
  io::ImagePacking other = packing("in");
  other.output = path("other");
  other.classes = path("packed");
  EXPECT_THAT(io::pack_images(other).classes, ElementsAre("dog", "cat"));
  other.output = path("third");
  other.classes = write("names.txt", "cat\n");
  expect_refused(ExitCode::data, other, {"a folder 'dog'"});
  other.classes = write("names.txt", "cat\ncat\n");
  expect_refused(ExitCode::data, other, {"one twice"});
}

TEST_F(PackImages, TakesTinyImageNetAsItIs) {
  put("in/wnids.txt", "n2\nn1\n");
  put("in/train/n1/images/n1_0.JPEG", make_jpeg(8, 8));
  put("in/train/n1/n1_boxes.txt", "n1_0.JPEG\t0\t0\t1\t1\n");
  put("in/train/n2/images/n2_0.JPEG", make_jpeg(9, 9));
  put("in/val/images/val_0.JPEG", make_jpeg(4, 4));
  put("in/val/val_annotations.txt", "val_0.JPEG\tn1\t0\t0\t1\t1\n");
  io::ImagePacking split = packing("in");
  expect_refused(ExitCode::usage, split, {"add --split"});

  split.split = io::ImageSplit::train;
  (void)io::pack_images(split);
  EXPECT_THAT(images(2), ElementsAre(std::pair(1, make_jpeg(8, 8)), std::pair(0, make_jpeg(9, 9))));

  fs::remove_all(path("packed"));
  split.split = io::ImageSplit::validation;
  (void)io::pack_images(split);
  EXPECT_THAT(images(2), ElementsAre(std::pair(1, make_jpeg(4, 4))));

  fs::remove_all(path("packed"));
  put("in/val/val_annotations.txt", "val_0.JPEG\tn7\t0\n");
  expect_refused(ExitCode::data, split, {"val_annotations.txt", "n7"});
}

/// A record of CIFAR and the PPM that it becomes.
std::pair<std::string, std::string> cifar(const std::string& labels) {
  std::string record = labels;
  std::string ppm = "P6\n32 32\n255\n";
  const Pixels pixels = pattern(32, 32, 3);
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t i = 0; i < 1024; ++i) record += static_cast<char>(pixels[3 * i + c]);
  }
  return {record, ppm + std::string(pixels.begin(), pixels.end())};
}

TEST_F(PackImages, TakesCifar10) {
  const auto [record, ppm] = cifar("\x03");
  put("in/data_batch_1.bin", record + cifar("\x09").first);
  put("in/data_batch_2.bin", cifar(std::string(1, '\0')).first);
  put("in/test_batch.bin", record);
  io::ImagePacking split = packing("in");
  split.split = io::ImageSplit::train;

  EXPECT_EQ(io::pack_images(split).layout, "CIFAR-10");

  EXPECT_THAT(images(10), ElementsAre(std::pair(3, ppm), std::pair(9, ppm), std::pair(0, ppm)));
  EXPECT_EQ(open(path("packed"), 10)->name(1),
            path("packed/shard_00000.tar") + ": truck/data_batch_1_00001.ppm");
}

TEST_F(PackImages, TakesFineLabelsOfCifar100) {
  const auto [record, ppm] = cifar("\x03\x2A");
  put("in/train.bin", record);

  EXPECT_EQ(io::pack_images(packing("in")).layout, "CIFAR-100");

  EXPECT_THAT(images(100), ElementsAre(std::pair(42, ppm)));
}

TEST_F(PackImages, RefusesOtherCifarFiles) {
  put("in/data_batch_1.bin", cifar("\x0A").first);
  expect_refused(ExitCode::data, packing("in"), {"data_batch_1.bin", "label 10 of image 0"});
  put("in/data_batch_1.bin", "short");
  expect_refused(ExitCode::data, packing("in"), {"records of 3073 bytes", "5 bytes"});
  put("python/batches.meta", "x");
  put("python/data_batch_1", "x");
  expect_refused(ExitCode::data, packing("python"), {"pickles", "jobs/data/cifar_python.py"});
}

TEST_F(PackImages, TakesTarFiles) {
  put("in/0.tar", tar({tar_member("1.cls", "7"), tar_member("1.ppm", make_ppm(2, 2)),
                       tar_member("2.jpg", make_jpeg(8, 8)), tar_member("2.cls", "3")}));

  const io::PackedImages packed = io::pack_images(packing("in"));

  EXPECT_EQ(packed.layout, "tar files");
  EXPECT_TRUE(packed.classes.empty());
  EXPECT_THAT(images(8), ElementsAre(std::pair(7, make_ppm(2, 2)), std::pair(3, make_jpeg(8, 8))));
}

TEST_F(PackImages, CountsWhatATarHasBesideImages) {
  const std::string folder_tar =
      tar({tar_member("apple/0.webp", "RIFF"), tar_member("bear/0.ppm", make_ppm(2, 2)),
           tar_member("cat/0.ppm", make_ppm(3, 2)), tar_member("dodo/", "", '5')});
  put("in/0.tar", folder_tar);

  const io::PackedImages packed = io::pack_images(packing("in"));

  EXPECT_THAT(packed.classes, ElementsAre("apple", "bear", "cat", "dodo"));
  EXPECT_THAT(packed.class_images, ElementsAre(0, 1, 1, 0));
  EXPECT_EQ(packed.other_files, 1);
  EXPECT_THAT(images(4), ElementsAre(std::pair(1, make_ppm(2, 2)), std::pair(2, make_ppm(3, 2))));
  EXPECT_THAT(open(path("in/0.tar"), 4)->description(),
              testing::EndsWith("2 images of 4 classes, 2 of them without one, tar (1 files are no "
                                "images by their names)"));
}

TEST_F(PackImages, CountsLabelledFilesThatAreNoImages) {
  put("in/0.tar", tar({tar_member("1.cls", "7"), tar_member("1.webp", "RIFF"),
                       tar_member("2.jpg", make_jpeg(8, 8)), tar_member("2.cls", "3")}));

  EXPECT_EQ(io::pack_images(packing("in")).other_files, 1);
}

TEST_F(PackImages, RefusesASampleThatComesTwice) {
  const std::string image = tar_member("000.ppm", make_ppm(2, 2));
  put("in/0.tar", tar({image, tar_member("000.cls", "1"), image, tar_member("000.cls", "0")}));
  put("folders/0.tar", tar({tar_member("a/1.ppm", "P6"), tar_member("a/1.ppm", "P6")}));
  put("labels/0.tar", tar({image, tar_member("000.cls", "1"), tar_member("000.CLS", "0")}));

  expect_refused(ExitCode::data, packing("in"), {"0.tar", "'000.cls' twice", "tar -r"});
  expect_refused(ExitCode::data, packing("folders"), {"0.tar", "'a/1.ppm' twice"});
  expect_refused(ExitCode::data, packing("labels"), {"0.tar", "'000.CLS' twice"});
}

TEST_F(PackImages, RefusesImagesWhoseClassIsNotClear) {
  put("in/0.tar", tar({tar_member("train/dog/1.ppm", "P6"), tar_member("val/dog/1.ppm", "P6")}));
  put("folder/dog/1.ppm", make_ppm(2, 2));
  put("folder/2.ppm", make_ppm(2, 2));

  expect_refused(ExitCode::data, packing("in"),
                 {"class folders beside each other", "'train/dog' and 'val/dog'"});
  expect_refused(ExitCode::data, packing("folder"), {"images in class folders", "'2.ppm'"});
}

TEST_F(PackImages, KeepsImagesOfOneNameApart) {
  const std::string long_name(150, 'n');
  put("in/a/1.ppm", make_ppm(2, 2));
  put("in/a/deeper/1.ppm", make_ppm(3, 3));
  put("in/a/" + long_name + ".ppm", make_ppm(4, 4));

  (void)io::pack_images(packing("in"));

  const auto set = open(path("packed/*.tar"), 1);
  ASSERT_EQ(set->size(), 3);
  EXPECT_THAT(set->name(0), testing::EndsWith(": a/1.ppm"));
  EXPECT_THAT(set->name(1), testing::EndsWith(": a/000000001_1.ppm"));
  EXPECT_THAT(set->name(2), HasSubstr(": a/000000002_nnn"));
}

TEST_F(PackImages, KeepsAMadeNameApartFromALaterOne) {
  put("in/a/1.ppm", make_ppm(2, 2));
  put("in/a/deeper/1.ppm", make_ppm(3, 3));
  put("in/a/e/000000001_1.ppm", make_ppm(4, 4));

  (void)io::pack_images(packing("in"));

  const auto set = open(path("packed/*.tar"), 1);
  ASSERT_EQ(set->size(), 3);
  EXPECT_THAT(set->name(1), testing::EndsWith(": a/000000001_1.ppm"));
  EXPECT_THAT(set->name(2), testing::EndsWith(": a/000000002_000000001_1.ppm"));
}

TEST_F(PackImages, CutsLongNamesBetweenCharacters) {
  std::string folder;
  std::string file;
  while (folder.size() < 51) folder += "\u20ac";
  while (file.size() < 99) file += "\u20ac";
  put("in/" + folder + "/" + file + ".ppm", make_ppm(2, 2));

  (void)io::pack_images(packing("in"));

  const auto set = open(path("packed/*.tar"), 1);
  std::string expected = ": ";
  for (int i = 0; i < 14; ++i) expected += "\u20ac";  // 42 bytes
  EXPECT_THAT(set->name(0), HasSubstr(expected + "/000000000_\u20ac"));
}

TEST_F(PackImages, NamesAndCountsBrokenImages) {
  const std::string jpeg = make_jpeg(64, 64);
  put("in/a/cut.jpg", jpeg.substr(0, jpeg.size() / 2));
  put("in/a/empty.jpg", "");
  put("in/a/good.jpg", jpeg);
  put("in/a/huge.ppm", "P6 99999 99999 255\n");
  put("in/a/text.png", "<html>");
  io::ImagePacking skip = packing("in");
  expect_refused(
      ExitCode::data, skip,
      {"4 of 5 images are broken", "a/cut.jpg (expected a whole JPEG image",
       "empty.jpg (expected an image, found no bytes)", "huge.ppm", ", ...", "--broken skip"});
  skip.skip_broken = true;

  const io::PackedImages packed = io::pack_images(skip);

  EXPECT_EQ(packed.images, 1);
  ASSERT_EQ(packed.broken.size(), 4U);
  EXPECT_EQ(packed.broken[3].name, path("in/a/text.png"));
  EXPECT_EQ(set_json()["broken"].size(), 4U);
  EXPECT_THAT(images(1), ElementsAre(std::pair(0, jpeg)));
}

TEST_F(PackImages, FindsCutImagesByDecodingAlone) {
  const std::string jpeg = make_jpeg(64, 64);
  put("in/a/cut.jpg", jpeg.substr(0, jpeg.size() - 40));
  io::ImagePacking headers = packing("in");
  headers.verify = false;

  EXPECT_EQ(io::pack_images(headers).images, 1);
}

TEST_F(PackImages, RefusesWhatIsNoInput) {
  put("in/file.txt", "x");
  put("two/0.tar", tar({tar_member("/abs.ppm", "P6")}));

  expect_refused(ExitCode::data, packing("nowhere"), {"nowhere", "no such path"});
  expect_refused(ExitCode::data, packing("in"), {"expected images", "none"});
  expect_refused(ExitCode::data, packing("in/file.txt"), {"file.txt", ".tar files alone"});
  expect_refused(ExitCode::data, packing("two"), {"0.tar", "'/abs.ppm'"});
  io::ImagePacking split = packing("in");
  split.split = io::ImageSplit::train;
  expect_refused(ExitCode::usage, split, {"is not divided"});
}

TEST_F(PackImages, LeavesAnOutputThatExists) {
  put_two_classes();
  put("packed/mine", "x");

  expect_error(ExitCode::usage, {"--output", "exists"},
               [&] { (void)io::pack_images(packing("in")); });

  EXPECT_EQ(content("packed/mine"), "x");
}

TEST_F(PackImages, AFullDiskIsOneErrorWhereverItHappens) {
  put_two_classes();
  int n = 0;
  for (bool hit = true; hit; fs::remove_all(path("packed"))) {
    const NthFault fault(++n, ENOSPC);
    try {
      (void)io::pack_images(packing("in"));
      EXPECT_FALSE(fault.hit()) << fault.point();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::storage);
      EXPECT_THAT(error.what(), HasSubstr("cannot write '" + path("packed") + "': No space left"));
      const bool renamed = fs::exists(path("packed"));
      if (renamed) {
        EXPECT_EQ(images(2).size(), 3U);
      }
      EXPECT_EQ(number_of_files(), renamed ? 2U : 1U);
    }
    hit = fault.hit();
  }
  EXPECT_GT(n, 8);
}

}  // namespace
}  // namespace hyperslab::test
