"""Train the demonstration tokenizer: `python -m loadtest.train_tokenizer`.

The text is made here, by the small generator below, so that the vocabulary is the project's own and
a run gives the same file again. The result is a byte-level BPE with the special tokens of ChatML:
large enough that English prose and JSON have a natural token count, small enough to be committed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

DEMO_MODEL = Path(__file__).parent / "demo_model"
VOCABULARY = 4096
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

# Contractions, words with one leading non-letter, single digits, punctuation, line ends, blanks.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def words(text: str) -> list[str]:
    return text.split()


NOUNS = words("""
answer model token stream request gateway server client question system message user assistant
prompt cache block prefix replica queue worker window budget limit tenant tier bucket reserve water
river channel turbine dam valley mountain forest tree leaf branch root seed garden flower bird fish
horse dog cat house room door wall floor roof kitchen table chair lamp book page letter word
sentence story chapter library school teacher student lesson exam science history music song dance
picture colour light shadow morning evening night day week month year hour minute second time clock
city street road bridge station train ship harbour island sea ocean beach sand stone metal wood
glass paper cloth silk cotton bread butter cheese apple orange lemon pepper salt sugar coffee tea
doctor nurse patient medicine hospital heart brain hand foot eye ear nose mouth body health problem
solution method result test example case detail reason cause effect change difference distance
speed weight height length area volume number figure table column row value total average sum
percentage price market money bank account payment order customer product service company manager
team project plan goal task issue report meeting decision agreement contract law court judge police
government minister president country nation people family mother father child brother sister friend
neighbour weather wind rain snow storm cloud sun moon star planet space energy power engine machine
computer network program function variable class object string integer list dictionary file folder
path error exception warning log record field key index search query database version release update
memory processor disk kernel thread process socket packet address port protocol header body status
code language grammar syntax parser compiler library package module interface type argument return
""")

VERBS = words("""
ask tell say speak write read open close start stop begin finish send receive wait move turn carry
bring take give keep hold build break repair clean wash cook eat drink sleep wake walk run jump
climb swim fly drive ride travel arrive leave return stay visit meet help teach learn study know
think believe understand remember forget decide choose prefer want need hope wish love like hate
fear
explain describe compare measure count add remove divide multiply increase reduce improve change
create design draw paint print copy move store load save find search sort filter group join split
check test verify approve reject accept refuse allow deny limit charge settle abandon route forward
relay stream tokenize encode decode compress connect disconnect retry recover fail crash restart
""")

ADJECTIVES = words("""
small large short long high low fast slow early late new old young warm cold hot dry wet clean dirty
bright dark quiet loud soft hard heavy light strong weak rich poor simple complex easy difficult
clear strange common rare useful careful honest kind gentle brave calm happy sad angry tired hungry
important possible necessary available different similar equal single double whole empty full open
public private local global internal external stable random exact rough deep shallow wide narrow
first second third last next previous current recent ancient modern natural human digital parallel
""")

OTHERS = words("""
the a an this that these those of in on at by for with from to into over under between through
about after before during without against and or but because although while when where which who
what why how if then else not no yes very quite too also only even still already always never often
sometimes usually perhaps maybe here there now soon again together apart more most less least many
much few several some any every each both all none one two three four five six seven eight nine ten
I you he she it we they me him her us them my your his its our their is are was were be been being
have has had do does did can could will would shall should may might must please thanks hello sorry
""")

SUFFIXES = (
    "",
    "",
    "",
    "s",
    "ed",
    "ing",
    "er",
    "ly",
    "ness",
    "ment",
    "able",
    "ation",
    "less",
    "ful",
)

FRAMES = (
    "The {a} {n} {v}s the {n} {o} the {a} {n}.",
    "Please {v} how a {n} can {v} {o} its {n}, and why it is {a}.",
    "What is the {n} of the {a} {n}? Explain it in {a} words.",
    "I would like to {v} my {n}; could you {v} it {o} {n}s?",
    "Once upon a time, a {a} {n} lived {o} a {n}, and it didn't {v}.",
    "Here's the {n}: first {v} the {n}, then {v} it again ({o} {n}).",
    "- {n}: {a} {n}\n- {n}: {a} {n}\n",
    '{{"{n}": "{a}", "{n}_id": {i}, "{n}s": [{i}, {i}], "{v}": true, "{n}": null}}\n',
    "def {v}_{n}(self, {n}: int) -> str:\n    return self.{n}.{v}({n})\n",
    "for {n} in {n}s:\n    if {n} is None:\n        continue\n    {v}({n}, {i})\n",
    'import {n}\n\nclass {N}({N}):\n    """{N} that {v}s."""\n',
    '<{n} {a}="{i}">{o}</{n}>\n',
    "# {N}\n\n## {N} {n}\n\n1. {v} the {n}\n2. {v} {o} {n}\n\n```python\n{n} = {i}\n```\n",
    "https://example.com/{n}/{v}?{n}={i}&{a}=1\n",
    "Das ist ein {n}, und der {n} ist nicht {a}. Wir haben keine Zeit.\n",
    "C'est la {n} de la {n}, mais elle n'est pas {a} pour nous.\n",
    "El {n} no es {a}, pero los {n}s son muy buenos para la ciudad.\n",
)


def sentences(count: int, seed: int = 1) -> Iterator[str]:
    """`count` made-up pieces of prose, code and markup; the same ones for the same seed."""
    rng = random.Random(seed)

    def word(stems: list[str]) -> str:
        return rng.choice(stems) + rng.choice(SUFFIXES)

    for _ in range(count):
        frame = rng.choice(FRAMES)
        while "{" in frame.replace("{{", ""):
            before = frame
            for mark, stems in (("n", NOUNS), ("v", VERBS), ("a", ADJECTIVES), ("o", OTHERS)):
                frame = frame.replace("{" + mark + "}", word(stems), 1)
            frame = frame.replace("{N}", word(NOUNS).capitalize(), 1)
            frame = frame.replace("{i}", str(rng.randrange(10_000)), 1)
            if frame == before:
                break
        yield frame.replace("{{", "{").replace("}}", "}")
    stems = [*NOUNS, *VERBS, *ADJECTIVES, *OTHERS]
    for stem in stems:
        yield f" {stem} {stem} {stem.capitalize()} {stem}s {stem}"


def train() -> Tokenizer:
    """A byte-level BPE over the generated text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(20_000), trainer)
    return tokenizer


def main() -> None:
    path = DEMO_MODEL / "tokenizer.json"
    train().save(str(path), pretty=False)
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
