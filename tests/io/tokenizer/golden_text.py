# SPDX-License-Identifier: Apache-2.0
"""The text that golden vocabularies are trained on."""

TEXT = """The quick brown fox jumps over the lazy dog. The dog doesn't mind; it's used to the fox's jumps, and it'll
sleep until 12:30 or 2024, whichever comes first. "We've seen 100 foxes," they'd say, "and you're the 101st!"

    if (tokens > 0) {
        return tokens / seconds;   // tokens per second
    }

Der schnelle braune Fuchs springt über den faulen Hund. Größe, Übermut, Äpfel: 3,14159.
Le renard brun et rapide saute par-dessus le chien paresseux; où étiez-vous, garçon ?
Быстрая коричневая лиса прыгает через ленивую собаку. Лиса прыгает через собаку.
السلام عليكم ورحمة الله שלום עולם שלום
敏捷的棕色狐狸跳过懒狗。狐狸跳过懒狗。　速い茶色の狐。
😀😀😀 👨‍👩‍👧 👍🏽 e\u0301e\u0301 aaaaaaaaaaaaaaaa                hello hello hello hello
<|endoftext|>
The fox and the dog sleep. The fox and the dog eat. The end of the text is not the end of the fox.
"""
