"""Two hundred convolutions of well-known networks, as their papers or torchvision have them.

One line each: network, layer, problem in oneDNN's form (padding that is not given follows from the
output's size). Layers that occur in several networks stand under the first; ResNet-101's are
those of ResNet-50. One-dimensional layers have a height of 1, so that every engine takes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from leanconv.spec import ConvSpec

_TABLE = """
AlexNet           conv1                 ic3ih224oc64oh55kh11sh4ph2
AlexNet           conv2                 ic64ih27oc192oh27kh5
AlexNet           conv3                 ic192ih13oc384oh13kh3
AlexNet           conv4                 ic384ih13oc256oh13kh3
AlexNet           conv5                 ic256ih13oc256oh13kh3
VGG-16            conv1_1               ic3ih224oc64oh224kh3
VGG-16            conv1_2               ic64ih224oc64oh224kh3
VGG-16            conv2_1               ic64ih112oc128oh112kh3
VGG-16            conv2_2               ic128ih112oc128oh112kh3
VGG-16            conv3_1               ic128ih56oc256oh56kh3
VGG-16            conv3_2               ic256ih56oc256oh56kh3
VGG-16            conv4_1               ic256ih28oc512oh28kh3
VGG-16            conv4_2               ic512ih28oc512oh28kh3
VGG-16            conv5_1               ic512ih14oc512oh14kh3
ResNet-18         conv1                 ic3ih224oc64oh112kh7sh2ph3
ResNet-18         layer1.0.conv1        ic64ih56oc64oh56kh3
ResNet-18         layer2.0.conv1        ic64ih56oc128oh28kh3sh2ph1
ResNet-18         layer2.0.downsample   ic64ih56oc128oh28kh1sh2
ResNet-18         layer2.0.conv2        ic128ih28oc128oh28kh3
ResNet-18         layer3.0.conv1        ic128ih28oc256oh14kh3sh2ph1
ResNet-18         layer3.0.downsample   ic128ih28oc256oh14kh1sh2
ResNet-18         layer3.0.conv2        ic256ih14oc256oh14kh3
ResNet-18         layer4.0.conv1        ic256ih14oc512oh7kh3sh2ph1
ResNet-18         layer4.0.downsample   ic256ih14oc512oh7kh1sh2
ResNet-18         layer4.0.conv2        ic512ih7oc512oh7kh3
ResNet-50         layer1.0.conv1        ic64ih56oc64oh56kh1
ResNet-50         layer1.0.conv3        ic64ih56oc256oh56kh1
ResNet-50         layer1.1.conv1        ic256ih56oc64oh56kh1
ResNet-50         layer2.0.conv1        ic256ih56oc128oh56kh1
ResNet-50         layer2.0.conv2        ic128ih56oc128oh28kh3sh2ph1
ResNet-50         layer2.0.conv3        ic128ih28oc512oh28kh1
ResNet-50         layer2.0.downsample   ic256ih56oc512oh28kh1sh2
ResNet-50         layer2.1.conv1        ic512ih28oc128oh28kh1
ResNet-50         layer3.0.conv1        ic512ih28oc256oh28kh1
ResNet-50         layer3.0.conv2        ic256ih28oc256oh14kh3sh2ph1
ResNet-50         layer3.0.conv3        ic256ih14oc1024oh14kh1
ResNet-50         layer3.0.downsample   ic512ih28oc1024oh14kh1sh2
ResNet-50         layer3.1.conv1        ic1024ih14oc256oh14kh1
ResNet-50         layer4.0.conv1        ic1024ih14oc512oh14kh1
ResNet-50         layer4.0.conv2        ic512ih14oc512oh7kh3sh2ph1
ResNet-50         layer4.0.conv3        ic512ih7oc2048oh7kh1
ResNet-50         layer4.0.downsample   ic1024ih14oc2048oh7kh1sh2
ResNet-50         layer4.1.conv1        ic2048ih7oc512oh7kh1
ResNeXt-50-32x4d  layer1.0.conv1        ic64ih56oc128oh56kh1
ResNeXt-50-32x4d  layer1.0.conv2        g32ic128ih56oc128oh56kh3
ResNeXt-50-32x4d  layer2.0.conv2        g32ic256ih56oc256oh28kh3sh2ph1
ResNeXt-50-32x4d  layer2.1.conv2        g32ic256ih28oc256oh28kh3
ResNeXt-50-32x4d  layer3.0.conv2        g32ic512ih28oc512oh14kh3sh2ph1
ResNeXt-50-32x4d  layer3.1.conv2        g32ic512ih14oc512oh14kh3
ResNeXt-50-32x4d  layer4.0.conv2        g32ic1024ih14oc1024oh7kh3sh2ph1
ResNeXt-50-32x4d  layer4.1.conv2        g32ic1024ih7oc1024oh7kh3
ResNeXt-101-32x8d layer1.0.conv2        g32ic256ih56oc256oh56kh3
ResNeXt-101-32x8d layer3.1.conv2        g32ic1024ih14oc1024oh14kh3
Inception-v3      Conv2d_1a_3x3         ic3ih299oc32oh149kh3sh2ph0
Inception-v3      Conv2d_2a_3x3         ic32ih149oc32oh147kh3
Inception-v3      Conv2d_2b_3x3         ic32ih147oc64oh147kh3
Inception-v3      Conv2d_3b_1x1         ic64ih73oc80oh73kh1
Inception-v3      Conv2d_4a_3x3         ic80ih73oc192oh71kh3
Inception-v3      Mixed_5b.branch1x1    ic192ih35oc64oh35kh1
Inception-v3      Mixed_5b.branch5x5_2  ic48ih35oc64oh35kh5
Inception-v3      Mixed_5b.branch3x3_2  ic64ih35oc96oh35kh3
Inception-v3      Mixed_5b.branch3x3_3  ic96ih35oc96oh35kh3
Inception-v3      Mixed_5b.branch_pool  ic192ih35oc32oh35kh1
Inception-v3      Mixed_6a.branch3x3    ic288ih35oc384oh17kh3sh2ph0
Inception-v3      Mixed_6b.branch1x1    ic768ih17oc192oh17kh1
Inception-v3      Mixed_6b.branch7x7_1  ic768ih17oc128oh17kh1
Inception-v3      Mixed_6b.branch7x7_2  ic128ih17oc128oh17kh1kw7
Inception-v3      Mixed_6b.branch7x7_3  ic128ih17oc192oh17kh7kw1
Inception-v3      Mixed_6c.branch7x7_2  ic160ih17oc160oh17kh1kw7
Inception-v3      Mixed_6c.branch7x7_3  ic160ih17oc192oh17kh7kw1
Inception-v3      Mixed_6e.branch7x7_2  ic192ih17oc192oh17kh1kw7
Inception-v3      Mixed_6e.branch7x7_3  ic192ih17oc192oh17kh7kw1
Inception-v3      Mixed_7a.branch3x3_2  ic192ih17oc320oh8kh3sh2ph0
Inception-v3      Mixed_7b.branch1x1    ic1280ih8oc320oh8kh1
Inception-v3      Mixed_7b.branch3x3_2a ic384ih8oc384oh8kh1kw3
Inception-v3      Mixed_7b.branch3x3_2b ic384ih8oc384oh8kh3kw1
Inception-v3      Mixed_7b.branch3dbl_2 ic448ih8oc384oh8kh3
Inception-v3      Mixed_7c.branch3dbl_1 ic2048ih8oc448oh8kh1
SqueezeNet-1.1    conv1                 ic3ih224oc64oh111kh3sh2ph0
SqueezeNet-1.1    fire2.squeeze         ic64ih55oc16oh55kh1
SqueezeNet-1.1    fire2.expand1x1       ic16ih55oc64oh55kh1
SqueezeNet-1.1    fire2.expand3x3       ic16ih55oc64oh55kh3
SqueezeNet-1.1    fire4.squeeze         ic128ih27oc32oh27kh1
SqueezeNet-1.1    fire4.expand3x3       ic32ih27oc128oh27kh3
SqueezeNet-1.1    fire6.expand3x3       ic48ih13oc192oh13kh3
SqueezeNet-1.1    fire8.expand3x3       ic64ih13oc256oh13kh3
SqueezeNet-1.1    conv10                ic512ih13oc1000oh13kh1
DenseNet-121      block1.layer1.conv2   ic128ih56oc32oh56kh3
DenseNet-121      block2.layer1.conv2   ic128ih28oc32oh28kh3
DenseNet-121      block3.layer9.conv1   ic512ih14oc128oh14kh1
DenseNet-121      block3.layer1.conv2   ic128ih14oc32oh14kh3
DenseNet-121      block4.layer16.conv1  ic992ih7oc128oh7kh1
DenseNet-121      block4.layer1.conv2   ic128ih7oc32oh7kh3
MobileNet-v1      conv1                 ic3ih224oc32oh112kh3sh2ph1
MobileNet-v1      conv2.dw              g32ic32ih112oc32oh112kh3
MobileNet-v1      conv2.pw              ic32ih112oc64oh112kh1
MobileNet-v1      conv3.dw              g64ic64ih112oc64oh56kh3sh2ph1
MobileNet-v1      conv4.dw              g128ic128ih56oc128oh56kh3
MobileNet-v1      conv4.pw              ic128ih56oc128oh56kh1
MobileNet-v1      conv5.dw              g128ic128ih56oc128oh28kh3sh2ph1
MobileNet-v1      conv5.pw              ic128ih28oc256oh28kh1
MobileNet-v1      conv6.dw              g256ic256ih28oc256oh28kh3
MobileNet-v1      conv6.pw              ic256ih28oc256oh28kh1
MobileNet-v1      conv7.dw              g256ic256ih28oc256oh14kh3sh2ph1
MobileNet-v1      conv8.dw              g512ic512ih14oc512oh14kh3
MobileNet-v1      conv8.pw              ic512ih14oc512oh14kh1
MobileNet-v1      conv13.dw             g512ic512ih14oc512oh7kh3sh2ph1
MobileNet-v1      conv14.dw             g1024ic1024ih7oc1024oh7kh3
MobileNet-v1      conv14.pw             ic1024ih7oc1024oh7kh1
MobileNet-v2      block1.project        ic32ih112oc16oh112kh1
MobileNet-v2      block2.expand         ic16ih112oc96oh112kh1
MobileNet-v2      block2.dw             g96ic96ih112oc96oh56kh3sh2ph1
MobileNet-v2      block2.project        ic96ih56oc24oh56kh1
MobileNet-v2      block3.expand         ic24ih56oc144oh56kh1
MobileNet-v2      block3.dw             g144ic144ih56oc144oh56kh3
MobileNet-v2      block3.project        ic144ih56oc24oh56kh1
MobileNet-v2      block4.dw             g144ic144ih56oc144oh28kh3sh2ph1
MobileNet-v2      block5.expand         ic32ih28oc192oh28kh1
MobileNet-v2      block5.dw             g192ic192ih28oc192oh28kh3
MobileNet-v2      block5.project        ic192ih28oc32oh28kh1
MobileNet-v2      block8.expand         ic64ih14oc384oh14kh1
MobileNet-v2      block8.dw             g384ic384ih14oc384oh14kh3
MobileNet-v2      block8.project        ic384ih14oc64oh14kh1
MobileNet-v2      block15.expand        ic160ih7oc960oh7kh1
MobileNet-v2      block15.dw            g960ic960ih7oc960oh7kh3
MobileNet-v2      block15.project       ic960ih7oc160oh7kh1
MobileNet-v2      head                  ic320ih7oc1280oh7kh1
MobileNet-v3      stem                  ic3ih224oc16oh112kh3sh2ph1
MobileNet-v3      block4.dw             g72ic72ih56oc72oh28kh5sh2ph2
MobileNet-v3      block5.dw             g120ic120ih28oc120oh28kh5
MobileNet-v3      block5.project        ic120ih28oc40oh28kh1
MobileNet-v3      block10.expand        ic80ih14oc480oh14kh1
MobileNet-v3      block13.dw            g672ic672ih14oc672oh7kh5sh2ph2
MobileNet-v3      block15.dw            g960ic960ih7oc960oh7kh5
MobileNet-v3      block15.se.reduce     ic960ih1oc240oh1kh1
MobileNet-v3      head                  ic960ih1oc1280oh1kh1
EfficientNet-B0   block4.dw             g144ic144ih56oc144oh28kh5sh2ph2
EfficientNet-B0   block5.dw             g240ic240ih28oc240oh28kh5
EfficientNet-B0   block10.dw            g672ic672ih14oc672oh14kh5
EfficientNet-B0   block13.dw            g1152ic1152ih7oc1152oh7kh5
EfficientNet-B0   block13.project       ic1152ih7oc192oh7kh1
EfficientNet-B4   stem                  ic3ih380oc48oh190kh3sh2ph1
EfficientNet-B4   block1.dw             g48ic48ih190oc48oh190kh3
EfficientNet-B4   block4.dw             g192ic192ih95oc192oh95kh3
EfficientNet-B4   block4.project        ic192ih95oc32oh95kh1
EfficientNet-B4   block8.dw             g336ic336ih48oc336oh48kh5
EfficientNet-B4   block18.dw            g960ic960ih24oc960oh24kh5
EfficientNet-B4   block24.project       ic1632ih12oc272oh12kh1
ShuffleNet-v1-g3  stage2.gconv1         g3ic240ih28oc60oh28kh1
ShuffleNet-v1-g3  stage2.gconv2         g3ic60ih28oc240oh28kh1
ShuffleNet-v1-g3  stage3.gconv1         g3ic480ih14oc120oh14kh1
ShuffleNet-v2     stage2.dw             g58ic58ih28oc58oh28kh3
ShuffleNet-v2     stage2.pw             ic58ih28oc58oh28kh1
ShuffleNet-v2     stage3.pw             ic116ih14oc116oh14kh1
ShuffleNet-v2     stage4.dw             g232ic232ih7oc232oh7kh3
Xception          conv2                 ic32ih149oc64oh147kh3
Xception          block1.sep1.pw        ic64ih147oc128oh147kh1
Xception          block1.sep2.dw        g128ic128ih147oc128oh147kh3
Xception          middle.sep.dw         g728ic728ih19oc728oh19kh3
Xception          middle.sep.pw         ic728ih19oc728oh19kh1
YOLO-v3           conv0                 ic3ih416oc32oh416kh3
YOLO-v3           conv1                 ic32ih416oc64oh208kh3sh2ph1
YOLO-v3           conv6                 ic128ih104oc64oh104kh1
YOLO-v3           conv7                 ic64ih104oc128oh104kh3
YOLO-v3           conv26                ic256ih52oc512oh26kh3sh2ph1
YOLO-v3           conv44                ic512ih13oc1024oh13kh3
YOLO-v3           detect                ic1024ih13oc255oh13kh1
YOLO-v5s          conv0                 ic3ih640oc32oh320kh6sh2ph2
YOLO-v5s          c3.m.cv2              ic32ih160oc32oh160kh3
YOLO-v5s          c3.cv3                ic64ih160oc64oh160kh1
YOLO-v8n          c2f.m.cv1             ic16ih160oc16oh160kh3
YOLO-v8n          detect.cv3            ic64ih80oc80oh80kh3
YOLO-v8n          detect.dfl            ic16ih4iw8400oc1oh4ow8400kh1
U-Net             down1.conv1           ic1ih572oc64oh570kh3
U-Net             down1.conv2           ic64ih570oc64oh568kh3
U-Net             down5.conv1           ic512ih32oc1024oh30kh3
U-Net             last                  ic64ih388oc2oh388kh1
SSD300            conv6                 ic512ih19oc1024oh19kh3dh5
SSD300            conv7                 ic1024ih19oc1024oh19kh1
SSD300            conv8_2               ic256ih19oc512oh10kh3sh2ph1
SSD300            conv4_3.locations     ic512ih38oc16oh38kh3
DeepLab-v3        layer4.conv2          ic512ih33oc512oh33kh3dh1
DeepLab-v3        aspp.rate12           ic2048ih33oc256oh33kh3dh11
ConvNeXt-T        stem                  ic3ih224oc96oh56kh4sh4
ConvNeXt-T        stage1.dw             g96ic96ih56oc96oh56kh7
ConvNeXt-T        stage1.pw1            ic96ih56oc384oh56kh1
ConvNeXt-T        stage2.dw             g192ic192ih28oc192oh28kh7
ConvNeXt-T        stage3.dw             g384ic384ih14oc384oh14kh7
ConvNeXt-T        stage4.dw             g768ic768ih7oc768oh7kh7
RepLKNet-31B      stage1.dw             g128ic128ih56oc128oh56kh31
RepLKNet-31B      stage2.dw             g256ic256ih28oc256oh28kh29
RepLKNet-31B      stage4.dw             g1024ic1024ih7oc1024oh7kh13
SRCNN             conv1                 ic1ih256oc64oh256kh9
SRCNN             conv2                 ic64ih256oc32oh256kh5
ESPCN             conv3                 ic32ih180iw320oc27oh180ow320kh3
FSRCNN            conv1                 ic1ih180iw320oc56oh180ow320kh5
FSRCNN            mapping               ic12ih180iw320oc12oh180ow320kh3
EDSR              body.conv             ic64ih128oc64oh128kh3
WaveNet           dilated512            ic64ih1iw16000oc128oh1ow15488kh1kw2dw511
WaveNet           skip                  ic64ih1iw15488oc128oh1ow15488kh1
"""


@dataclass(frozen=True)
class Layer:
    """One convolution of one network.

    Attributes:
        network, layer: where it stands.
        problem: what it is, in oneDNN's form.
    """

    network: str
    layer: str
    problem: str

    @property
    def name(self) -> str:
        """The network and the layer, as tables and JSON call it."""
        return f"{self.network}/{self.layer}"

    def spec(self, batch: int = 1) -> ConvSpec:
        """The convolution, with the same padding at both ends where that changes no output.

        A stride leaves the last row and column of padding unread; networks declare it all the same,
        and engines that cannot pad one side alone would copy the input first.
        """
        spec = ConvSpec.parse(self.problem, batch=batch)
        both = replace(spec, pad_end=spec.pad_begin)
        return both if both.output_size == spec.output_size else spec


SHAPES: tuple[Layer, ...] = tuple(Layer(*line.split()) for line in _TABLE.split("\n") if line)
