/* Read handwritten digits from pictures: ./classify PICTURE.pgm...

   A picture is a gray PGM file (P5) of 32x32 or 64x64 pixels, as ../digits/images has them in PNG.
   Nothing is allocated: the network's memory is an array of this program. */
#include <stdint.h>
#include <stdio.h>

#include "digits.h"

enum { SIDE = 32, CLASSES = DIGITS_OUTPUT_ELEMENTS };

/* C99 aligns no array to 64 bytes: round the address up. */
static uint8_t memory[DIGITS_ARENA_BYTES + DIGITS_ARENA_ALIGNMENT - 1];

static void *aligned(uint8_t *at) {
  return at + (DIGITS_ARENA_ALIGNMENT - (uintptr_t)at % DIGITS_ARENA_ALIGNMENT) %
                  DIGITS_ARENA_ALIGNMENT;
}

/* Halve a line of pixels, bilinear: weights 1 3 3 1, at the ends of those that have a pixel. */
static void halve(const uint8_t *from, int from_step, uint8_t *to, int to_step) {
  for (int i = 0; i < SIDE; i++) {
    const uint8_t *at = from + 2 * i * from_step;
    int before = i > 0, after = i < SIDE - 1;
    int sum = 3 * (at[0] + at[from_step]), total = 6 + before + after;
    if (before) sum += at[-from_step];
    if (after) sum += at[2 * from_step];
    to[i * to_step] = (uint8_t)((2 * sum + total) / (2 * total));
  }
}

/* Read a picture of SIDE x SIDE pixels, or of twice as many; 0 where that fails. */
static int read_picture(const char *name, uint8_t *pixels) {
  static uint8_t large[4 * SIDE * SIDE], narrow[2 * SIDE * SIDE];
  int width = 0, height = 0, white = 0;
  FILE *file = fopen(name, "rb");
  if (file == NULL) return 0;
  int good = fscanf(file, "P5 %d %d %d", &width, &height, &white) == 3 && white == 255 &&
             width == height && (width == SIDE || width == 2 * SIDE) && fgetc(file) != EOF;
  if (good) {
    size_t size = (size_t)width * (size_t)height;
    good = fread(width == SIDE ? pixels : large, 1, size, file) == size;
  }
  fclose(file);
  if (good && width == 2 * SIDE) {
    for (int row = 0; row < 2 * SIDE; row++)
      halve(large + row * 2 * SIDE, 1, narrow + row * SIDE, 1);
    for (int column = 0; column < SIDE; column++)
      halve(narrow + column, SIDE, pixels + column, SIDE);
  }
  return good;
}

int main(int count, char **names) {
  static uint8_t pixels[SIDE * SIDE];
  static float input[DIGITS_INPUT_ELEMENTS], scores[CLASSES];
  const digits_io io = {input, scores};
  void *arena = aligned(memory);
  int code = digits_init(arena);
  if (code != DIGITS_OK) {
    fprintf(stderr, "classify: %s\n",
            code == DIGITS_WRONG_CPU ? "this CPU lacks instructions" : "no arena");
    return 1;
  }
  for (int i = 1; i < count; i++) {
    if (!read_picture(names[i], pixels)) {
      fprintf(stderr, "classify: %s: expected a PGM of 32x32 or 64x64 pixels\n", names[i]);
      code = 1;
      continue;
    }
    for (int k = 0; k < SIDE * SIDE; k++)
      input[k] = ((float)pixels[k] * (1.0f / 255.0f) - 0.5f) / 0.5f;
    digits_run(&io, arena);
    int best = 0;
    for (int k = 1; k < CLASSES; k++)
      if (scores[k] > scores[best]) best = k;
    printf("%s: %d, score %.9g\n", names[i], best, (double)scores[best]);
  }
  digits_close(arena);
  return code;
}
